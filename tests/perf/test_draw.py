"""perf.draw and perf.curve_draw: that all ways draw the same pictures, and what is made of their scores."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from export.world.draw import draw
from export.world.verify import verify
from export.world.wish import Wish, drawing, full_wish
from perf.curve_draw import GUIDANCES, SAMPLERS, STEPS, Kept, ways
from perf.draw import furthest, orders, waste_of_lockstep
from perf.draw_curve_page import REFERENCE, page, plot
from perf.draw_scores import Point, Score, clustered, front, wilson

WISHES = [full_wish(drawing("train", number)) for number in range(40)]


def seen(wish: Wish, number: int) -> Score:
    """What the rules make of the true picture of scene `number`."""
    return Score.of(verify(np.asarray(draw(drawing("train", number))), wish))


def point(exact: int, *, core_s: float = 1.0, sampler: str = "euler", steps: int = 50, guidance: float = 2.0) -> Point:
    """`exact` pictures are what was wished; the others are those of somebody else."""
    scores = [seen(wish, number if number < exact else number + 1) for number, wish in enumerate(WISHES)]
    return Point(
        sampler=sampler, steps=steps, guidance=guidance, evaluations=2 * steps, core_s=core_s, scores=tuple(scores)
    )


@pytest.mark.parametrize(
    ("right", "number", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (190, 200, 0.9104, 0.9726)],
)
def test_interval_of_a_share_is_wilsons(right: int, number: int, low: float, high: float) -> None:
    share = wilson(right, number)
    assert share.value == right / number
    assert (share.low, share.high) == pytest.approx((low, high), abs=1e-4)


def test_things_of_one_picture_count_as_one_draw() -> None:
    """Four things of a picture that are right or wrong together tell no more than one."""
    right = np.array([1.0, 0.0] * 50)
    alone, together = clustered(right, np.ones(100)), clustered(4 * right, np.full(100, 4.0))
    assert (together.low, together.high) == (alone.low, alone.high)
    assert alone.high - alone.low == pytest.approx(2 * 1.96 * 0.05, rel=0.1)


def test_scores_of_true_pictures_are_full_and_of_others_are_not() -> None:
    full, half = point(40), point(20)
    assert [full.of_pictures(key).value for key in ("background", "count", "exact")] == [1.0, 1.0, 1.0]
    assert full.of_things("colours").value == full.of_things("shapes").value == 1.0
    assert half.of_pictures("exact").value == 0.5
    assert 0.4 < half.of_things("shapes").value < 0.8


def test_gain_is_taken_prompt_by_prompt() -> None:
    same, more = point(20).gain_over(point(20)), point(30).gain_over(point(20))
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    assert more.value == 0.25
    assert 0 < more.low < more.high


def test_front_leaves_out_what_is_dearer_and_no_better() -> None:
    cheap, dear, better = point(10, core_s=1.0), point(10, core_s=2.0), point(30, core_s=3.0)
    assert front([better, dear, cheap]) == [cheap, better]


def test_every_way_is_measured_once_and_the_reference_is_among_them() -> None:
    every = ways()
    assert len(every) == len(set(every)) == (len(SAMPLERS) + len(GUIDANCES) - 1) * len(STEPS)
    assert REFERENCE in [(way.sampler, way.steps, way.guidance) for way in every]


def test_points_are_read_as_they_were_kept(tmp_path: Path) -> None:
    kept, (first, second, *_) = Kept(tmp_path / "points"), ways()
    kept.add(first, point(20))
    again = Kept(tmp_path / "points")
    assert (again.has(first), again.has(second)) == (True, False)
    assert again.read(first) == point(20)


def test_page_and_plot_have_every_point(tmp_path: Path) -> None:
    points = [point(20, steps=4, core_s=0.1), point(38, guidance=1.0, core_s=0.5), point(30, sampler="heun"), point(38)]
    rows = [line for line in page(points).splitlines() if line.startswith(("| euler", "| heun"))]
    assert [row.split("|")[1].strip() for row in rows] == ["euler", "euler", "heun", "euler"]
    assert ["**" in row for row in rows] == [True, True, False, False]
    plot(points, tmp_path / "plots" / "curve.png")
    with Image.open(tmp_path / "plots" / "curve.png") as picture:
        assert picture.size == (1100, 800)


def test_batches_that_end_together_waste_what_is_left_of_the_shorter_ones() -> None:
    assert waste_of_lockstep([20, 20]) == 0
    assert waste_of_lockstep([4, 20, 50] * 2) == pytest.approx(1 - 74 / 150)


def test_orders_have_prompts_and_seeds_of_their_own() -> None:
    wanted = orders("96x64", random.Random(0).choices((4, 20), k=12))
    assert len({order.prompt for order in wanted}) == len({order.settings.seed for order in wanted}) == 12
    assert {(order.settings.width_px, order.settings.height_px) for order in wanted} == {(96, 64)}


@pytest.mark.oracle
def test_ours_the_bare_loop_and_diffusers_draw_the_same_pictures(tmp_path: Path) -> None:
    """Whoever is faster has not done less. Pictures of diffusers may differ by rounding."""
    from export.diffusion_repository import export_draw_checkpoint
    from perf.draw_studio import BareLoop, Diffusers, Studio
    from proteus.deployment import Deployment
    from proteus.manifest import DrawManifest
    from tests.tiny_diffusers import sd15

    folder = sd15(tmp_path / "sd15", prediction="v_prediction", tokens=77)
    export_draw_checkpoint(folder, tmp_path / "out")
    deployment = Deployment.load(tmp_path / "out" / "deployment.toml")
    wanted = orders("32x32", [4] * 5)
    studio = Studio(deployment, clients=3)
    try:
        ours = studio.draw(wanted)
    finally:
        studio.close()
    assert all(picture.shape == (32, 32, 3) for picture in ours)
    assert furthest(ours, BareLoop(deployment, batch=2).draw(wanted)) <= 1
    manifest = DrawManifest.load(deployment.repository_path)
    assert furthest(ours, Diffusers(folder, manifest).draw(wanted)) <= 1
