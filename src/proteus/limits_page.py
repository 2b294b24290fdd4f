"""Every limit as a person reads of it: the text of docs/limits.md and the table of `proteus contract`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from proteus.limits import DrawTables, LimitTables, Section
from proteus.limits_cache import CacheTables
from proteus.limits_gateway import GatewayTables
from proteus.limits_gpu import HostTables
from proteus.limits_published import Contract, DrawContract

# End of a key -> unit, the longest first. Other keys name what they count.
UNITS: Mapping[str, str] = {
    "previews_per_s": "previews/s",
    "per_s": "frames/s",
    "bytes": "bytes",
    "pixels": "px",
    "px": "px",
    "seconds": "s",
    "ms": "ms",
    "s": "s",
    "hz": "Hz",
    "tokens": "tokens",
    "flops": "FLOP",
}
TABLES = (LimitTables, CacheTables, DrawTables, HostTables, GatewayTables)
BOUNDS = (("exclusiveMinimum", ">"), ("minimum", "≥"), ("maximum", "≤"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One key, as a person reads of it."""

    key: str
    values: str  # what may stand there
    unit: str  # empty where the key names what it counts
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTable:
    name: str  # dotted, from the top of the file
    about: str
    entries: tuple[Entry, ...]


def described(section: type[Section], name: str = "", about: str = "") -> Iterator[DescribedTable]:
    """A section and those below it, in their order, without those that hold no key of their own."""
    below, entries = [], []
    schemas = section.model_json_schema()["properties"]
    for key, field in section.model_fields.items():
        inner = next((kind for kind in (field.annotation, *get_args(field.annotation)) if _is_table(kind)), None)
        if inner is not None:
            below.append((inner, f"{name}.{key}".lstrip("."), field.description or ""))
        else:
            unit = next((unit for end, unit in UNITS.items() if f"_{key}".endswith(f"_{end}")), "")
            entries.append(Entry(key=key, values=_values(schemas[key]), unit=unit, meaning=field.description or ""))
    if entries:
        yield DescribedTable(name=name, about=about or (section.__doc__ or ""), entries=tuple(entries))
    for table in below:
        yield from described(*table)


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _values(schema: Mapping[str, Any]) -> str:
    """What a JSON schema allows, in words."""
    if "anyOf" in schema:
        return f"{_values(schema['anyOf'][0])}; may be left out"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "array":
        return f"list of {_values(schema['items'])}"
    words = {"integer": "whole number", "string": "text", "boolean": "true or false"}.get(schema["type"], "number")
    bounds = [f"{sign} {schema[key]:g}" for key, sign in BOUNDS if key in schema]
    return " ".join([words, " and ".join(bounds)]).rstrip()


def markdown() -> str:
    """The text of docs/limits.md."""
    told = (table for contract in (Contract, DrawContract) for table in described(contract))
    offered = {f"{table.name}.{entry.key}" for table in told for entry in table.entries}
    parts = [
        "# Limits of a deployment",
        "Generated from `limits.py`, `limits_cache.py`, `limits_gpu.py` and `limits_gateway.py` "
        "(`python -m proteus.limits_page > docs/limits.md`); a test compares.",
        "The tables of the deployment file that state limits; `deployments/demo.toml` shows every key with a number. "
        "A request over a limit is refused with the key and the number.",
        "A published key is a parameter of the model `chat`, or of `draw` where it begins so, under its whole name, "
        "such as `image.max_bytes`: text as it stands, anything else as JSON. `proteus contract` and "
        "`Client.contract()` read it. `fetch.enabled` is published besides: whether any host is allowed.",
        "`[draw]` and `[denoiser]` with all below them may be left out where nothing is drawn, and "
        "`[encoder_cache.redis]` where servers share nothing. `[gpu]` with all below it is for hosts with GPUs, "
        "`[encoder_pool]` for fleets whose pictures are encoded by servers of their own, `[gateway]` for the gateway.",
    ]
    for table in (table for tables in TABLES for table in described(tables)):
        rows = ["| key | value | unit | meaning | published |", "|---|---|---|---|---|"]
        for entry in table.entries:
            is_offered = "yes" if f"{table.name}.{entry.key}" in offered else "no"
            rows.append(f"| `{entry.key}` | {entry.values} | {entry.unit} | {entry.meaning} | {is_offered} |")
        parts += [f"## `[{table.name}]`", table.about, "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")  # noqa: T201
