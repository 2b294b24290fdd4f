"""Expected failures of a command, told in one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from proteus.client import ClientError, InvalidInput
from proteus.client.printable import printable
from proteus.errors import ProteusError


@contextmanager
def told_plainly() -> Iterator[None]:
    """An expected failure is one line on standard error and an exit code."""
    try:
        yield
    except InvalidInput as error:
        typer.echo(printable(str(error)), err=True)
        sys.exit(2)
    except (ClientError, ProteusError) as error:
        typer.echo(printable(str(error)), err=True)
        sys.exit(1)
