"""perf.curve_ask: what is asked how, how it is judged, and what page and plot make of it. No server."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from PIL import Image

from export.world.held_out import Item, held_out_items
from export.world.questions import TYPES
from perf.ask_curve_page import PAGE, TITLES, markdown, page, parts_of, plot, summary, tables
from perf.ask_pictures import corner, drawn, file, files
from perf.ask_scores import MAX_PIXELS, QUARTERS, Cell, Row, Way, middle, rows_of
from perf.ask_server import cpu_s, reading_deployment
from perf.curve_ask import Kept, Measurement, Run, is_right, types_of, ways
from perf.draw_scores import wilson
from proteus.client import Answer, Choice, Usage
from proteus.deployment import Deployment

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "deployments" / "demo.toml"
ALL = (*TYPES, "which")


def cell(way: Way, type_: str, *, right: int = 8, core_ms: tuple[float, ...] = (9.0, 10.0, 12.0)) -> Cell:
    """Ten questions about scenes 0 to 9."""
    return Cell(
        way=way,
        type=type_,
        right=tuple(number < right for number in range(10)),
        seeds=tuple(range(10)),
        core_ms=core_ms,
        visual_tokens=72.0 if type_ == "which" else 36.0 * len(way.views),
        file_bytes=1234.0,
    )


def every_cell() -> list[Cell]:
    return [cell(way, type_) for way in ways() for type_ in types_of(way)]


def answer(text: str, finish_reason: str = "stop") -> Answer:
    choice = Choice(text=text, token_ids=(1,), finish_reason=finish_reason)
    usage = Usage(text_tokens=1, visual_tokens=36, output_tokens=1)
    return Answer(choices=(choice,), usage=usage, stages_ms={})


def test_every_way_has_a_name_of_its_own_and_all_types_that_fit_it() -> None:
    assert len({way.name for way in ways()}) == len(ways())
    assert set(ALL) == set(TITLES)
    assert {types_of(way) for way in ways()} == {ALL, ("small",)}
    assert {way.caps for way in ways()} == set(MAX_PIXELS)


@pytest.mark.parametrize("way", ways(), ids=lambda way: way.name)
def test_pictures_have_the_size_and_format_of_their_way(way: Way) -> None:
    (item,) = held_out_items(types_of(way)[-1], 1)
    made = files(item, way)
    assert len(made) == len(item.scenes) * len(way.views) <= 4
    for data in made:
        with Image.open(io.BytesIO(data)) as picture:
            assert (picture.size, picture.format) == ((way.side_px, way.side_px), way.format.upper())


def test_quarters_are_those_of_the_picture_and_one_shows_the_small_shape() -> None:
    scene = held_out_items("small", 1)[0].scenes[0]
    whole = Image.new("RGB", (128, 128))
    for view in QUARTERS:
        whole.paste(Image.open(io.BytesIO(file(scene, view, 64, "png"))), corner(scene, view, 64))
    assert whole.tobytes() == drawn(scene, 128).tobytes()
    row, column = divmod(next(shape.cell for shape in scene.shapes if shape.small), 3)
    left, top = corner(scene, "around", 64)
    middle_px = ((2 * column + 1) * 128 / 6, (2 * row + 1) * 128 / 6)
    assert left < middle_px[0] < left + 64 and top < middle_px[1] < top + 64


@pytest.mark.parametrize(
    ("said", "right"),
    [(answer("red"), True), (answer("red", "length"), False), (answer("red circle"), False), (answer(""), False)],
)
def test_right_is_exactly_the_answer_and_then_the_end(said: Answer, right: bool) -> None:
    items = (item for item in held_out_items("colour", 50) if item.question.answer == "red")
    item: Item = next(items)
    assert is_right(said, item) is right


def test_types_are_shares_of_questions_and_the_row_draws_whole_scenes_again() -> None:
    way = Way(side_px=96)
    row = Row(way, tuple(cell(way, type_) for type_ in ALL))
    assert row.of("colour").accuracy == wilson(8, 10)
    alone = Row(way, (cell(way, "colour"),)).accuracy
    assert row.accuracy == alone  # nine answers about a scene that are right or wrong together tell no more than one
    assert (alone.value, alone.low < 0.8 < alone.high) == (0.8, True)


def test_cost_is_the_median_run_of_requests_with_one_scene() -> None:
    way = Way(side_px=96)
    cells = (
        cell(way, "colour"),
        cell(way, "read", core_ms=(19.0, 20.0, 22.0)),
        cell(way, "which", core_ms=(99.0,) * 3),
    )
    assert Row(way, cells).cost == middle([14.0, 15.0, 17.0])
    assert str(cells[0].cost) == "10.000 [9.000, 12.000]"


def test_runs_are_read_as_they_were_kept_and_only_the_others_are_missing(tmp_path: Path) -> None:
    kept, (way, *_) = Kept(tmp_path / "runs"), ways()
    runs = {type_: Run(right=[True, False], core_ms=9.5, visual_tokens=36.0, file_bytes=99.0) for type_ in ALL}
    kept.add(way, 1, runs)
    assert Kept(tmp_path / "runs").read(way, 1) == runs
    missing = Measurement(kept, 4, 2).missing("demo")
    demos = [way for way in ways() if way.caps == "demo"]
    assert missing == [(0, each) for each in demos] + [(1, each) for each in demos if each != way]


def test_cells_have_every_question_once_beside_its_own_scene(tmp_path: Path) -> None:
    kept, questions = Kept(tmp_path), 5
    items = held_out_items("read", questions)
    for way in ways():
        for number in range(2):
            right = [True] * len(items[number::2])
            run = Run(right=right, core_ms=1.0 + number, visual_tokens=36.0, file_bytes=10.0 * (number + 1))
            kept.add(way, number, dict.fromkeys(types_of(way), run))
    read = next(one for one in Measurement(kept, questions, 2).cells() if one.type == "read")
    assert read.seeds == tuple(item.scenes[0].seed for item in (*items[::2], *items[1::2]))
    assert (read.core_ms, read.visual_tokens, read.file_bytes) == ((1.0, 2.0), 36.0, 14.0)


def test_tables_have_every_way() -> None:
    rows = rows_of(every_cell())
    found = tables(rows)
    whole = [way for way in ways() if way.views == ("whole",)]
    assert [found[name].count("\n") - 2 for name in ("right", "cost", "parts")] == [len(whole), len(whole), 3]
    assert "| 512x512 PNG | low | 32x32 | 1.2 | 36, two: 72 | **0.800" in found["right"]
    assert "| 1536x1536 JPEG | low | the demo's |" in found["right"]
    assert "| four quarters | 144 | 10.0 [9.0, 12.0] | 0.800 [0.490, 0.943] |" in found["parts"]
    assert summary(rows).row_count == len(ways())


def test_plot_is_written(tmp_path: Path) -> None:
    plot(rows_of(every_cell()), tmp_path / "plots" / "curve.png")
    with Image.open(tmp_path / "plots" / "curve.png") as picture:
        assert picture.size == (1400, 850)


def test_page_has_its_tables_once_however_often_it_is_written() -> None:
    rows = rows_of(every_cell())
    once = page(PAGE.read_text(encoding="utf-8"), rows)
    assert page(once, rows) == once
    assert [once.count(table) for table in tables(rows).values()] == [1, 1, 1]


def test_a_page_without_its_marks_is_told() -> None:
    with pytest.raises(ValueError, match=r"has the mark <!-- right --> 0 times"):
        page("# No marks\n", rows_of(every_cell()))


def test_parts_stand_beside_the_whole_picture_of_their_size() -> None:
    assert [one.way.views for one in parts_of(rows_of(every_cell()))] == [("whole",), ("around", "whole"), QUARTERS]
    assert markdown(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"


@pytest.mark.parametrize("caps", MAX_PIXELS)
def test_a_deployment_of_our_own_differs_in_its_caps_only(caps: str, tmp_path: Path) -> None:
    demo, ours = Deployment.load(DEMO), reading_deployment(DEMO, tmp_path, MAX_PIXELS[caps])  # type: ignore[index]
    assert ours.reads and not ours.draws
    assert ours.checkpoint_path == demo.checkpoint_path
    assert ours.repository_path == tmp_path / "model_repository"
    for tier, limits in ours.tiers:
        own = getattr(demo.tiers, tier)
        assert limits == own.model_copy(update={"max_pixels": MAX_PIXELS[caps].get(tier, own.max_pixels)})  # type: ignore[index]
    table, theirs = (tomllib.loads(path.read_text()) for path in (tmp_path / "deployment.toml", DEMO))
    changed = {"checkpoint", "draw_checkpoint", "repository", "tiers"}
    assert {name: table[name] for name in table.keys() - changed} == {
        name: theirs[name] for name in theirs.keys() - changed
    }


def test_cpu_time_is_that_of_children_too_also_of_those_that_ended() -> None:
    program = "import time\nwhile time.process_time() < 0.2: pass\n"
    begin_s = cpu_s(os.getpid())
    subprocess.run([sys.executable, "-c", program], check=True)
    assert cpu_s(os.getpid()) - begin_s >= 0.15
