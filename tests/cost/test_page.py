"""docs/costs.md tells what the plans say today."""

from __future__ import annotations

import re

from perf.costs import PAGE, PLOTS, families, page


def test_the_page_of_costs_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(list(families())), "run `make docs-plots`"
    shown = {
        name for other in PAGE.parent.glob("*.md") for name in re.findall(r"\]\(plots/([^)]+)\)", other.read_text())
    }
    assert {file.name for file in PLOTS.iterdir()} == shown >= {"tokens.png", "encoder.png"}
