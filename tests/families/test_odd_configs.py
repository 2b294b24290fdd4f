"""One value of a published checkpoint's files changed to anything: read or refused, at once and in little memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proteus.errors import ProteusError
from proteus.families.family import Family
from tests.bugs.folders import PUBLISHED
from tests.families.published_folders import load_changed

VALUES = (
    None, "", "x", "nan", True, -1, 0, 1, 7, 0.5, 1e308, float("nan"), 10**6, 10**9, 10**30, [], [1], [None], [[0, 0]],
    [[1, 2, 3]], ["x"], {}, {"a": 1}, {"height": 1}, {"shortest_edge": 10**9},
)  # fmt: skip


def places(document: dict[str, Any], before: str = "") -> Iterator[str]:
    """Every key, with those above it."""
    for key, value in document.items():
        yield f"{before}{key}"
        if isinstance(value, dict):
            yield from places(value, f"{before}{key}.")


def plan_all(family: Family) -> None:
    plans = {
        "image": lambda: [family.plan_image(*size_px) for size_px in ((640, 480), (1, 1), (4000, 3000))],
        "video": lambda: [family.plan_video(8, 640, 480)],
        "audio": lambda: [family.plan_audio(16_000)],
    }
    for modality in family.modalities:
        with contextlib.suppress(ProteusError):
            plans[modality]()


@pytest.mark.parametrize("name", PUBLISHED)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_any_value_is_read_or_refused(name: str, tmp_path: Path, draw: st.DataObject) -> None:
    files = PUBLISHED[name]
    file = draw.draw(st.sampled_from(sorted(files)))
    place = draw.draw(st.sampled_from(sorted(places(files[file]))))
    value = draw.draw(st.sampled_from(VALUES))
    with contextlib.suppress(ProteusError):
        plan_all(load_changed(tmp_path, files, {f"{file}: {place}": value}))
