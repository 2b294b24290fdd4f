"""docs/costs.md tells what the plans say today."""

from __future__ import annotations

from perf.costs import PAGE, PLOTS, families, page


def test_the_page_of_costs_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(list(families())), "run `make docs-plots`"
    assert {file.name for file in PLOTS.iterdir()} >= {"tokens.png", "encoder.png"}
