from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers import LONGEST, TOGETHER, scope_of

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("path", sorted({*LONGEST, *TOGETHER} - {*TOGETHER.values()}))
def test_what_is_named_is_there(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/test_docs.py::test_x[a::b/c]", "tests/test_docs.py"),
        ("tests/language/test_engine.py::TestX::test_y", "tests/language"),
        ("tests/generation/test_pipelines_oracle.py::test_z", "drawn"),
    ],
)
def test_a_worker_gets_a_file_or_the_files_that_share_an_export(nodeid: str, scope: str) -> None:
    assert scope_of(nodeid) == scope
