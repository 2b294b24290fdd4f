"""`proteus usage`: the metering log of the gateway, summed up."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from proteus.cli.plainly import told_plainly
from proteus.client import InvalidInput
from proteus.client.printable import printable

SERVED = "served"
DAY_CHARS = len("2026-11-30")
COLUMNS = {  # of the table: usage by its name in the log
    "text": "text_tokens",
    "visual": "visual_tokens",
    "cached": "cached_tokens",
    "output": "output_tokens",
    "drawn": "images",
}
SUMMED = (*COLUMNS.values(), "evaluations", "token_passes")


class By(StrEnum):
    tenant = "tenant"
    model = "model"
    day = "day"


@dataclass(slots=True)
class Sum:
    """Of the requests of one tenant, model or day."""

    requests: int = 0
    served: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    usage: Counter[str] = field(default_factory=Counter)
    prices: dict[str, Decimal] = field(default_factory=dict)  # by currency

    def add(self, line: Mapping[str, Any]) -> None:
        self.requests += 1
        self.served += line["outcome"] == SERVED
        self.outcomes[line["outcome"]] += 1
        self.usage.update({name: _counted(line["usage"].get(name, 0)) for name in SUMMED})
        price = line["price"]
        self.prices[price["currency"]] = self.prices.get(price["currency"], Decimal()) + price["amount"]

    def document(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "served": self.served,
            "outcomes": dict(self.outcomes),
            "usage": dict(self.usage),
            "prices": {currency: float(amount) for currency, amount in self.prices.items()},
        }


def usage(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", exists=True, dir_okay=False, show_default=False)],
    by: Annotated[By, typer.Option(help="What is told apart.")] = By.tenant,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Sum up the gateway's metering log: requests, tokens, pictures and price."""
    with told_plainly():
        sums, unreadable = summed(files, by)
    if unreadable:
        typer.echo(f"{unreadable:,} lines cannot be read", err=True)
    if as_json:
        typer.echo(json.dumps({name: one.document() for name, one in sums.items()}, indent=2))
    else:
        Console(highlight=False).print(table_of(sums, by))


def summed(files: Iterable[Path], by: By) -> tuple[dict[str, Sum], int]:
    """Sums in order of their names, and how many lines are none. Raises InvalidInput."""
    sums: dict[str, Sum] = {}
    unreadable = 0
    for line in _lines(files):
        try:
            document = json.loads(line, parse_float=Decimal, parse_int=_whole)
            name = document["time"][:DAY_CHARS] if by is By.day else document[by.value]
            one = Sum()
            one.add(document)
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
            unreadable += 1  # where a gateway was killed, or the disk was full
            continue
        sums.setdefault(str(name), Sum()).add(document)
    return dict(sorted(sums.items())), unreadable


def table_of(sums: Mapping[str, Sum], by: By) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(by.value, overflow="fold")
    for column in ("asked", "served", *COLUMNS):
        table.add_column(column, justify="right", overflow="fold")
    table.add_column("price", justify="right", no_wrap=True)
    for name, one in sums.items():
        prices = "\n".join(f"{amount:,.6f} {currency}" for currency, amount in one.prices.items())
        table.add_row(
            printable(name) or "none",
            f"{one.requests:,}",
            f"{one.served:,}",
            *(f"{one.usage[used]:,}" for used in COLUMNS.values()),
            printable(prices),
        )
    return table


def _lines(files: Iterable[Path]) -> Iterator[bytes]:
    for file in files:
        try:
            with file.open("rb") as lines:
                yield from (line for line in lines if line.strip())
        except OSError as error:
            raise InvalidInput(f"{file} cannot be read: {error.strerror}") from error


def _counted(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError("no number of anything")
    return value


def _whole(digits: str) -> int:
    """No log of ours has longer numbers."""
    if len(digits) > 30:
        raise ValueError("too long a number")
    return int(digits)
