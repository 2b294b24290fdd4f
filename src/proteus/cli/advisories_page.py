"""Writes the tables of docs/advisories.md from what is known: `python -m proteus.cli.advisories_page`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from proteus.cli.advisories_known import COMPONENTS, KNOWN, WAYS, Advisory

PAGE = Path("docs/advisories.md")
BEGIN, END = "<!-- written by python -m proteus.cli.advisories_page -->", "<!-- until here -->"
NAMES = {
    "triton": "Triton",
    "tensorrt": "TensorRT",
    "tensorrt-llm": "TensorRT-LLM",
    "container-toolkit": "NVIDIA Container Toolkit, on the host",
    "dali": "DALI, in NVIDIA's images",
}


def tables() -> str:
    """What stands in the way, by its name; then a table for each component, newest fix first."""
    return "\n".join([BEGIN, "", *_ways(), *(line for name in COMPONENTS for line in _component(name)), END])


def written(page: str) -> str:
    """`page` with the tables of today."""
    before, rest = page.split(BEGIN, 1)
    return before + tables() + rest.split(END, 1)[1]


def _ways() -> Iterator[str]:
    yield from ("## What stands in the way", "", "| way | here |", "|---|---|")
    yield from (f"| {way} | {guard} |" for way, guard in WAYS.items())
    yield ""


def _component(component: str) -> Iterator[str]:
    rows = [advisory for advisory in KNOWN if advisory.component == component]
    yield from (
        f"## {NAMES[component]}",
        "",
        "| CVE | score | fixed in | what | way | bulletin |",
        "|---|---|---|---|---|---|",
    )
    yield from (_row(advisory) for advisory in rows)
    yield ""


def _row(one: Advisory) -> str:
    return f"| {one.cve} | {one.score:.1f} | {one.fixed_in} | {one.what} | {one.way} | [{one.bulletin}]({one.source}) |"


def main() -> int:
    """Write the page."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
