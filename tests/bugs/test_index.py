"""The index of cases names tests that exist, and leaves no number and no test out."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LAST_CASE = 74
ROWS = [
    re.split(r"\s*\|\s*", line)[1:-1]
    for line in (HERE / "README.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| \d", line)
]


def test_every_case_has_a_row() -> None:
    listed = {int(number) for row in ROWS for number in row[0].split(", ")}
    assert listed == set(range(1, LAST_CASE + 1))


def test_every_test_that_is_named_exists() -> None:
    for numbers, _, place in ROWS:
        path, _, name = place.strip("`").partition("::")
        assert not path or (ROOT / path).is_file(), numbers
        assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), numbers


def test_every_row_without_a_test_says_which_issue_brings_it() -> None:
    assert [numbers for numbers, case, place in ROWS if not place and "issue" not in case] == []


def test_every_file_of_cases_is_listed() -> None:
    listed = {place.strip("`") for _, _, place in ROWS}
    assert {f"tests/bugs/{path.name}" for path in HERE.glob("test_case*.py")} <= listed
