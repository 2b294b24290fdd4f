"""Our plans against transformers, a few hundred media a case: `make oracle` asks about twenty thousand.

One process of its own judges all cases, because torchvision must stay out of this one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proteus.families.table import KNOWN
from tests.oracle.case import Hub
from tests.oracle.run import all_cases

ROOT = Path(__file__).parents[2]
COUNT = 300
CASES = all_cases()
MAX_S = 900  # on a machine that does much else; a minute and a half of one core
pytestmark = [pytest.mark.oracle, pytest.mark.timeout(MAX_S)]


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("oracle")
    out = folder / "oracle.json"
    command = [
        sys.executable,
        "-m",
        "tests.oracle.run",
        "--count",
        str(COUNT),
        "--work",
        str(folder),
        "--out",
        str(out),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=MAX_S)
    assert out.exists(), done.stderr
    return json.loads(out.read_text())["cases"]


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_plans_equal_the_processors_of_transformers(name: str, results: dict[str, Any]) -> None:
    assert results[name]["judged"] == COUNT
    assert results[name]["differences"] == []


@pytest.mark.parametrize("name", [case.name for case in CASES if case.flops_media()])
def test_encoder_operations_equal_those_that_torch_counts(name: str, results: dict[str, Any]) -> None:
    assert [one["ours"] for one in results[name]["flops"]] == [one["theirs"] for one in results[name]["flops"]]


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_some_media_go_through_a_real_call(name: str, results: dict[str, Any]) -> None:
    (case,) = (case for case in CASES if case.name == name)
    if type(case).full_judge is not Hub.full_judge:
        assert results[name]["full_calls"] > 0


def test_every_family_is_judged() -> None:
    judged = {case.family for case in CASES}
    assert {family.__module__.rsplit(".", 1)[-1] for family in KNOWN} == judged


def test_every_family_that_has_an_encoder_counts_its_operations() -> None:
    counted = {case.family for case in CASES if case.flops_media()}
    assert {case.family for case in CASES} - counted == set()
