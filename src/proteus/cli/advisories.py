"""`proteus advisories`: which of NVIDIA's security bulletins apply to the versions that run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from proteus.cli.advisories_known import COMPONENTS, KNOWN, READ_IN, READ_UNTIL, RELEASES, WAYS, Advisory, Component
from proteus.cli.plainly import told_plainly
from proteus.cli.told import told_by
from proteus.client.errors import InvalidInput
from proteus.client.printable import printable

EMBEDDED = "2.51.0"  # of the wheel
VERSION = re.compile(r"v?(\d{1,6}(?:\.\d{1,6}){1,3})(?:[ .-]?rc(\d{1,4}))?(?:$|[.+-].*)")
RELEASE = re.compile(r"2\d\.(?:0[1-9]|1[0-2])")  # of a container: 26.10
OLDEST = next(iter(RELEASES.values()))
FINAL = 1 << 20  # in place of a release candidate's number
VersionOf = Mapping[Component, str]


def advisories(
    version: Annotated[str | None, typer.Argument(metavar="VERSION", help="Of Triton: 2.51.0, or 26.10.")] = None,
    url: Annotated[str | None, typer.Option(help="Ask the server at this host:port of its HTTP port.")] = None,
    tensorrt: Annotated[str | None, typer.Option(help="Of TensorRT as well.")] = None,
    tensorrt_llm: Annotated[str | None, typer.Option(help="Of TensorRT-LLM as well.")] = None,
    container_toolkit: Annotated[str | None, typer.Option(help="Of NVIDIA's Container Toolkit on the host.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All that are known, whatever runs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """List NVIDIA's security advisories that apply to a version of Triton: by default that of the embedded server."""
    if version is not None and url is not None:
        raise typer.BadParameter("give VERSION or --url, not both")
    with told_plainly():
        given: dict[Component, str | None] = {
            "triton": version or (running(url) if url is not None else EMBEDDED),
            "tensorrt": tensorrt,
            "tensorrt-llm": tensorrt_llm,
            "container-toolkit": container_toolkit,
        }
        versions = {component: told for component, told in given.items() if told is not None}
        found = list(KNOWN) if every else [advisory for advisory in KNOWN if applies(advisory, versions)]
    if as_json:
        typer.echo(json.dumps(document(found, {} if every else versions), indent=2))
    else:
        _print(found, {} if every else versions)


def applies(advisory: Advisory, versions: VersionOf) -> bool:
    """Whether it is open in the version that runs; False where nobody told that version. Raises InvalidInput."""
    version = versions.get(advisory.component)
    if version is None:
        return False
    if advisory.component == "triton":
        version = release_of(version)
    return order(version) < order(advisory.fixed_in)


def release_of(version: str) -> str:
    """The container's release of a version of Triton: the newest that a source tells which is not after it."""
    if RELEASE.fullmatch(version) and order(version) >= order(OLDEST):
        return version
    told = [release for known, release in RELEASES.items() if order(known) <= order(version)]
    if not told or order(version)[0] != 2:
        raise InvalidInput(
            f"nothing is known of Triton {printable(version)!r}: write it as 2.51.0 or 26.10, from {OLDEST} on"
        )
    return told[-1]


def order(version: str) -> tuple[int, ...]:
    """To compare by; a release candidate comes before its release. Raises InvalidInput."""
    found = VERSION.fullmatch(version)
    if found is None:
        raise InvalidInput(f"{printable(version)!r} is no version: write it as 2.51.0, 26.10 or 1.3.0rc15")
    numbers = [int(number) for number in found[1].split(".")]
    return (*numbers, *[0] * (4 - len(numbers)), int(found[2]) if found[2] else FINAL)


def running(url: str) -> str:
    """The version that a server tells of itself. Raises InvalidInput and ConnectionFailed."""
    told = told_by(
        url,
        "/v2",
        keys={"version": str},
        kind="Triton",
        silent="is it the HTTP port of a server?",
        give="host:port of Triton's HTTP port, such as 127.0.0.1:8000",
    )
    version = str(told["version"])
    order(version)
    return version


def document(found: Iterable[Advisory], versions: VersionOf) -> dict[str, Any]:
    """The same for a program."""
    return {
        "read_until_bulletin": READ_UNTIL,
        "versions": dict(versions),
        "advisories": [
            {**advisory._asdict(), "source": advisory.source, "meanwhile": WAYS[advisory.way]} for advisory in found
        ],
    }


def _print(found: list[Advisory], versions: VersionOf) -> None:
    said = ", ".join(f"{name} {printable(version)}" for name, version in versions.items()) or "any version"
    if found:
        Console(highlight=False).print(_table(found))
    typer.echo(f"{len(found)} of {len(KNOWN)} known advisories apply to {said}.")
    typer.echo(f"NVIDIA's bulletins were read until {READ_UNTIL} ({READ_IN}); docs/advisories.md has the addresses.")
    unsaid = [name for name in COMPONENTS if name not in versions and name != "dali"]
    if versions and unsaid:
        typer.echo(f"Nothing is said of {', '.join(unsaid)}: give the versions.")


def _table(found: list[Advisory]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("CVE", "score", "of", "fixed in", "what", "what stands in the way here"):
        table.add_column(column, overflow="fold", no_wrap=column == "CVE")
    for one in sorted(found, key=lambda advisory: (COMPONENTS.index(advisory.component), -advisory.score)):
        table.add_row(one.cve, f"{one.score:.1f}", one.component, one.fixed_in, one.what, WAYS[one.way])
    return table
