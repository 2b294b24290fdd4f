"""What the engine counts, and how it is told."""

from __future__ import annotations

import pytest

from proteus.generation.counts import Counts, Moment, Spent
from proteus.generation.figures import DRAW_FIGURES, DrawFigures


def figures_of(counts: Counts) -> DrawFigures:
    return DrawFigures(live=2, waiting={"media": 1, "batch": 3}, counts=counts)


@pytest.fixture
def counts() -> Counts:
    counts = Counts()
    counts.note_call("64x64", 0.5, rows=6, padded=0, room=8)
    counts.note_call("64x64", 0.25, rows=1, padded=1, room=8)
    counts.note_call("96x64", 1.0, rows=5, padded=0, room=8)
    counts.note_preview(0.125)
    counts.ended("done", spent(9, 9))
    counts.ended("model_output_invalid", spent(9, 9))
    counts.ended("cancelled", spent(4, 2))
    counts.ended("cancelled", spent(0, 1))
    return counts


def spent(before: int, after: int) -> dict[Moment, Spent]:
    return {"before": Spent(before, before / 8), "after": Spent(after, after / 8)}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("live", {"": 2}),
        ("waiting", {"media": 1, "batch": 3}),
        ("ended_total", {"done": 1, "model_output_invalid": 1, "cancelled": 2}),
        ("calls_total", {"": 3}),
        ("rows_total", {"real": 12, "padded": 1}),
        ("row_room_total", {"": 24}),
        ("batch_occupancy", {"": 0.5}),
        ("evaluations_total", {"": 12}),
        ("accelerator_seconds_total", {"64x64": 0.75, "96x64": 1.0}),
        ("wasted_rows_total", {"before": 4, "after": 3}),
        ("wasted_seconds_total", {"before": 0.5, "after": 0.375}),
        ("previews_total", {"": 1}),
        ("preview_seconds_total", {"": 0.125}),
    ],
)
def test_figures_tell_what_was_counted(counts: Counts, name: str, values: dict[str, float]) -> None:
    assert figures_of(counts).values(f"proteus_draw_{name}") == values


def test_every_family_has_a_meaning_and_a_name_of_its_own() -> None:
    names = [figure.name for figure in DRAW_FIGURES]
    assert len(set(names)) == len(names)
    assert all(figure.meaning and figure.counts == figure.name.endswith("_total") for figure in DRAW_FIGURES)


def test_nothing_is_occupied_before_the_first_call() -> None:
    assert figures_of(Counts()).values("proteus_draw_batch_occupancy") == {"": 0.0}


def test_a_copy_stays_as_it_is(counts: Counts) -> None:
    copy = counts.copy()
    counts.note_call("64x64", 1.0, rows=2, padded=0, room=8)
    counts.ended("cancelled", spent(1, 1))
    assert figures_of(copy).values("proteus_draw_rows_total") == {"real": 12, "padded": 1}
    assert figures_of(copy).values("proteus_draw_accelerator_seconds_total")["64x64"] == 0.75
    assert figures_of(copy).values("proteus_draw_wasted_rows_total") == {"before": 4, "after": 3}
    assert figures_of(copy).values("proteus_draw_ended_total")["cancelled"] == 2
