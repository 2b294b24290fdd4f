"""The table of families in docs/families.md: what is planned, and how much of it the last long oracle run judged.

python -m perf.families
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proteus.families.family import Family
from proteus.families.table import KNOWN
from tests.oracle.run import all_cases

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "families.md"
RESULTS = ROOT / "perf" / "results" / "oracle.json"
COLUMNS = ("family", "module", "`model_type`", "plans", "oracle cases", "media judged", "differences")
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
TABLE = re.compile(rf"{re.escape(HEAD)}\n(\|.*\n)*")


def table() -> str:
    """One row a family; the last two columns are of perf/results/oracle.json, and empty until it is there."""
    judged: Mapping[str, Any] = json.loads(RESULTS.read_text())["cases"] if RESULTS.exists() else {}
    return "\n".join([HEAD, *(_row(family, judged) for family in sorted(KNOWN, key=lambda one: one.name))]) + "\n"


def _row(family: type[Family], judged: Mapping[str, Any]) -> str:
    module = family.__module__.rpartition(".")[2]
    names = [case.name for case in all_cases() if case.family == module]
    results = [judged[name] for name in names if name in judged]
    media = f"{sum(one['judged'] for one in results):,}" if results else ""
    differences = str(sum(len(one["differences"]) for one in results)) if results else ""
    types = ", ".join(f"`{name}`" for name in family.model_types)
    cells = (family.name, f"`{module}.py`", types, ", ".join(family.modalities), len(names), media, differences)
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(TABLE.sub(lambda _: table(), page), encoding="utf-8")


if __name__ == "__main__":
    main()
