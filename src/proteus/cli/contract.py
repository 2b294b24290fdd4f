"""The contract of a deployment file, and any contract as a table for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from proteus.client.contract import read_contract
from proteus.client.printable import printable


def file_contract(path: Path) -> dict[str, Any]:
    """What a server of this deployment file would publish."""
    from proteus.deployment import Deployment
    from proteus.limits_published import published, published_of_draw

    deployment = Deployment.load(path)
    parameters = published(deployment) if deployment.reads else {}
    if deployment.draws:
        parameters |= published_of_draw(deployment.drawing.limits)
    return read_contract(parameters)


def contract_table(contract: Mapping[str, Any]) -> Table:
    """Grouped as in the deployment file; keys that this version does not know come last, without a meaning."""
    from proteus.limits import shown
    from proteus.limits_page import described
    from proteus.limits_published import Contract, DrawContract

    given = dict(_dotted(contract))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("key", no_wrap=True)
    for column in ("value", "unit", "meaning"):
        table.add_column(column, overflow="fold")
    for section in chain(described(Contract), described(DrawContract)):
        told = [entry for entry in section.entries if f"{section.name}.{entry.key}" in given]
        if told:
            table.add_row(f"[bold]{escape(f'[{section.name}]')}", "", "", f"[bold]{escape(section.about)}")
        for entry in told:
            value = given.pop(f"{section.name}.{entry.key}")
            table.add_row(f"  {entry.key}", escape(printable(shown(value))), entry.unit, escape(entry.meaning))
        table.add_section()
    for key, value in given.items():
        table.add_row(escape(printable(key)), escape(printable(shown(value))))
    return table


def _dotted(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
