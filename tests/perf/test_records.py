"""A record says which commit was measured, and is one without git as well."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perf import records


def test_commit_is_short_and_says_whether_the_tree_was_changed() -> None:
    assert re.fullmatch(r"[0-9a-f]{7,}\+?|unknown", records.commit())


def test_commit_is_unknown_outside_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert records.commit() == "unknown"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert records.commit() == "unknown"
