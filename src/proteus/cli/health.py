"""`proteus health`: whether a server is ready, in a line and an exit code, for whoever starts containers."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from proteus.cli.plainly import told_plainly
from proteus.cli.told import told_by
from proteus.client.printable import printable

DEFAULT_HEALTH_URL = "127.0.0.1:8080"
CONDITION = {"ready": bool, "live": bool, "models": dict, "stubs": dict, "restarts": int, "reasons": list}


def health(
    url: Annotated[str, typer.Option(help="host:port that `proteus serve --health-port` told.")] = DEFAULT_HEALTH_URL,
    live: Annotated[bool, typer.Option("--live", help="Only whether it lives; it may be starting.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Print whether a server is ready: all its models, all its stubs. The exit code is 0 when it is, else 1."""
    with told_plainly():
        condition = ask(url)
    good = bool(condition["live"] if live else condition["ready"])
    typer.echo(json.dumps(condition, indent=2) if as_json else printable(line(condition, live=live)))
    sys.exit(0 if good else 1)


def line(condition: Mapping[str, Any], *, live: bool) -> str:
    """For a person."""
    restarts = int(condition["restarts"])
    history = f", {restarts} restart{'s' if restarts > 1 else ''} so far" if restarts else ""
    if live and condition["live"]:
        return f"alive{history}"
    if condition["ready"]:
        models, stubs = len(condition["models"]), sum(condition["stubs"].values())
        return f"ready: {models} models, {stubs} stubs{history}"
    return f"not {'alive' if live else 'ready'}: {'; '.join(condition['reasons'])}{history}"


def ask(url: str) -> Mapping[str, Any]:
    """What a health port tells. Raises InvalidInput and ConnectionFailed."""
    return told_by(
        url,
        "/",
        keys=CONDITION,
        kind="health port of proteus",
        silent="is it `proteus serve --health-port`?",
        give=f"host:port, such as {DEFAULT_HEALTH_URL}",
    )
