"""`proteus keys`: keys of the gateway's tenants, of which only digests are ever stored."""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from proteus.cli.plainly import told_plainly
from proteus.client import InvalidInput

OWNER_ONLY, PERMISSIONS = 0o600, 0o777
EXPECTED = "pk- and 43 characters, as `proteus keys new` prints it"

keys = typer.Typer(
    help="Make keys for the gateway's tenants, and list them.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="Whose key it will be.", show_default=False)]
TenantsFile = Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, show_default=False)]


@keys.command()
def new(
    tenant: Tenant,
    file: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write it into this file of tenants.", show_default=False)
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the key, in logs.", show_default=False)] = None,
    expires: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], help="Not valid from this day on.", show_default=False)
    ] = None,
) -> None:
    """Print a new key, once, and the line that stores its digest."""
    from proteus.gateway.tenancy.tenants_file import digest_of, new_key

    key = new_key()
    entry = entry_of(f"sha256:{digest_of(key.encode()).hex()}", name, expires)
    with told_plainly():
        _check(tenant, entry)
        if file is not None:
            write(file, tenant, entry)
    typer.echo(key)
    where = f"in {file}" if file is not None else f"to be stored below [tenants.{tenant}]: keys = [{entry}]"
    typer.echo(f"It is shown this once; its digest is {where}", err=True)


@keys.command("list")
def show(
    file: TenantsFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """List the tenants of a file and their keys, as far as the file knows them."""
    with told_plainly():
        rows = rows_of(file)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("tenant", "key", "digest", "expires", "scope", "weight"):
        table.add_column(column, overflow="fold")
    for row in rows:
        expires = row["expires"] or "never"
        told = f"{expires} (expired)" if row["expired"] else expires
        table.add_row(row["tenant"], row["key"], row["digest"][:15], told, row["scope"], str(row["weight"]))
    Console(highlight=False).print(table)


@keys.command("hash")
def digest() -> None:
    """Read a key from standard input and print its digest as it is stored."""
    from proteus.gateway.tenancy.tenants_file import KEY, digest_of

    given = sys.stdin.buffer.readline(1024).strip()
    with told_plainly():
        if not KEY.fullmatch(given):
            raise InvalidInput(f"that is no key: it is {EXPECTED}")
    typer.echo(f"sha256:{digest_of(given).hex()}")


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Raises DeploymentError."""
    from proteus.gateway.tenancy.tenants_file import read_tenants

    now = datetime.now(UTC)
    return [
        {
            "tenant": name,
            "key": key.label,
            "digest": key.hash,
            "expires": None if key.until is None else f"{key.until:%Y-%m-%d %H:%M}",
            "expired": key.until is not None and key.until <= now,
            "scope": tenant.shared_scope or tenant.cache_scope or name,
            "weight": tenant.weight,
        }
        for name, tenant in read_tenants(file).tenants.items()
        for key in tenant.keys
    ]


def entry_of(digest: str, name: str | None, expires: datetime | None) -> str:
    """A key as TOML."""
    if name is None and expires is None:
        return f'"{digest}"'
    told = [f'hash = "{digest}"']
    if name is not None:
        told.append(f"name = {json.dumps(name)}")
    if expires is not None:
        told.append(f"expires = {expires:%Y-%m-%d}")
    return f"{{ {', '.join(told)} }}"


def write(file: Path, tenant: str, entry: str) -> None:
    """Adds the key; all else in the file stays as it is, comments too. Raises DeploymentError or InvalidInput."""
    from proteus.gateway.tenancy.tenants_file import parse_tenants

    file = file.resolve()
    try:
        with _alone(file.parent):
            before = file.read_text("utf-8") if file.exists() else ""
            after = with_key(before, tenant, entry)
            if not _is_one_key_more(before, after, tenant, entry):
                raise InvalidInput(
                    f"{file} has [tenants.{tenant}] in a form of its own: add {entry} to its keys by hand"
                )
            parse_tenants(after, file)
            _replace(file, after)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} is not UTF-8 (byte {error.start})") from error
    except OSError as error:
        raise InvalidInput(f"{file} cannot be written: {error.strerror}") from error


def _is_one_key_more(before: str, after: str, tenant: str, entry: str) -> bool:
    """And nothing else has changed."""
    try:
        expected, now = tomllib.loads(before), tomllib.loads(after)
        of_tenant = expected.setdefault("tenants", {}).setdefault(tenant, {})
        of_tenant["keys"] = [tomllib.loads(f"key = {entry}")["key"], *of_tenant.get("keys", [])]
    except (tomllib.TOMLDecodeError, AttributeError, TypeError):
        return False
    return now == expected


def with_key(content: str, tenant: str, entry: str) -> str:
    """The text of a file with one more key, first of the tenant's own; a tenant that is not there comes at the end."""
    table = re.search(rf"^[ \t]*\[tenants\.{re.escape(tenant)}\][^\n]*\n?", content, re.M)
    if table is None:
        gap = "\n" if content.endswith("\n") else "\n\n" if content else ""
        return f"{content}{gap}[tenants.{tenant}]\nkeys = [{entry}]\n"
    rest = content[table.end() :]
    body = rest[: following.start()] if (following := re.search(r"^[ \t]*\[", rest, re.M)) else rest
    if (listed := re.search(r"^[ \t]*keys[ \t]*=[ \t]*\[", body, re.M)) is not None:
        at = table.end() + listed.end()
        empty = re.match(r"\s*\]", content[at:])
        return f"{content[:at]}{entry}{'' if empty else ', '}{content[at:]}"
    head = table[0] if table[0].endswith("\n") else f"{table[0]}\n"
    return f"{content[: table.start()]}{head}keys = [{entry}]\n{rest}"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Of two that add keys at once, each finds that of the other. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _replace(file: Path, content: str) -> None:
    """At once, or not at all. Whose file it is and who may read it stays as it was."""
    old = file.stat() if file.exists() else None
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as temporary:
            temporary.write(content)
            temporary.flush()
            if old is not None:
                os.fchown(temporary.fileno(), old.st_uid, old.st_gid)
            os.fchmod(temporary.fileno(), OWNER_ONLY if old is None else old.st_mode & PERMISSIONS)
            os.fsync(temporary.fileno())
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _check(tenant: str, entry: str) -> None:
    """Raises DeploymentError for a name that no file may have."""
    from proteus.gateway.tenancy.tenants_file import parse_tenants

    parse_tenants(f"[tenants.{json.dumps(tenant)}]\nkeys = [{entry}]\n", Path("the new tenant"))
