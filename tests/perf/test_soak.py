"""What a soak sends, how it judges what comes back, and which books it calls wrong."""

from __future__ import annotations

import asyncio
import io
import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from PIL import Image

from perf.soak import Result, records
from perf.soak_bad import BAD
from perf.soak_books import HELD, Books, by_label, faults
from perf.soak_kinds import CROWD, KINDS, Kind, Tally, Unexpected, Visit, deck
from perf.soak_page import MEMORY_COLUMNS, OUTCOME_COLUMNS, Point, memory_rows, outcome_rows, plot, with_table
from perf.soak_pictures import JPEG_START, Stock, bomb, encoded, marked
from perf.soak_processes import Held, Sample
from perf.soak_run import CROWD_SIZE, Course, Soak, Troubles, known_codes
from proteus.client import ConnectionFailed, ServerError, TimedOut
from proteus.deployment import Deployment
from proteus.media.probe import probe_picture

DEMO = Deployment.load(Path(__file__).parents[2] / "deployments" / "demo.toml")
STOCK = Stock()


def test_every_hundred_requests_have_the_same_kinds_in_another_order() -> None:
    assert sum(kind.share for kind in KINDS) == 100
    assert Counter(deck(0)) == Counter(deck(7)) == Counter({kind: kind.share for kind in KINDS})
    assert deck(0) != deck(7)
    assert deck(7) == deck(7)


@pytest.mark.parametrize("requests", [250, 1_000, 10_000])
def test_a_course_sends_so_many_and_kills_the_stub_before_the_baseline(requests: int) -> None:
    course = Course.of(requests)
    before, after = (list(course.visits(*part)) for part in ((0, course.baseline_at), (course.baseline_at, requests)))
    sent = sum(CROWD_SIZE if kind is CROWD else 1 for _, kind in before + after)
    assert sent == requests
    assert CROWD in {kind for _, kind in before}
    assert course.stub_dies_at < course.workers_die_at[0] < course.baseline_at < course.workers_die_at[1] < requests
    numbers = [number for number, _ in before + after]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("format_name", ["PNG", "JPEG"])
def test_a_mark_changes_the_bytes_and_no_pixel(format_name: str) -> None:
    data = encoded(1, (64, 64), format_name)
    one, other = marked(data, b"one"), marked(data, b"other")
    assert len({data, one, other}) == 3
    assert data.startswith(JPEG_START) == (format_name == "JPEG")
    pixels = [Image.open(io.BytesIO(file)).convert("RGB").tobytes() for file in (data, one, other)]
    assert pixels[0] == pixels[1] == pixels[2]


def test_a_bomb_is_small_and_says_what_it_is() -> None:
    data = bomb(5_000, 4_000)
    assert len(data) < 20_000
    assert Image.open(io.BytesIO(data)).size == (5_000, 4_000)


def test_the_stock_repeats_what_is_to_be_repeated_and_nothing_else() -> None:
    stock, chance = STOCK, random.Random(0)
    assert len({stock.again(chance) for _ in range(500)}) == len(stock.repeated)
    assert len({stock.fresh(chance) for _ in range(50)} | {stock.large(chance) for _ in range(10)}) == 60
    assert {probe_picture(data).format for data in stock.repeated} == set(DEMO.image.formats)


@pytest.mark.parametrize("name", BAD)
def test_every_bad_request_can_be_put_on_the_wire(name: str) -> None:
    raw = BAD[name].make(STOCK, random.Random(0))
    message = raw.message()
    assert [tensor.name for tensor in message.inputs][0] == "request"
    assert set(BAD[name].outcomes) <= known_codes() | {"answer"}


def test_every_bad_request_has_its_turn() -> None:
    tally = Tally()
    assert {tally.next_bad() for _ in BAD} == set(BAD)


def kind_that(*, ends: str | Exception) -> Kind:
    async def act(visit: Visit) -> str:
        if isinstance(ends, Exception):
            raise ends
        return ends

    return Kind(act=act, share=0, outcomes=frozenset({"answer", "queue_full"}))


def visited(kind: Kind, *, in_trouble: bool = False) -> Tally:
    """What one request of that kind leaves in the tally."""

    async def run() -> Tally:
        soak = Soak(cast(Any, None), Course.of(250), cast(Any, None), stub="llm", done=lambda: None)
        if in_trouble:
            async with soak.troubles.one():
                await soak.visit(cast(Any, None), 1, kind)
        else:
            await soak.visit(cast(Any, None), 1, kind)
        return soak.tally

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("ends", "lost", "unexpected", "in_trouble"),
    [
        ("answer", 0, 0, (0, 0)),
        ("left", 0, 1, (0, 0)),
        (ServerError("queue_full", "the queue is full"), 0, 0, (0, 0)),
        (ServerError("internal", "it broke"), 0, 1, (0, 0)),
        (ServerError("triton", "it broke"), 1, 0, (0, 0)),
        (ServerError("incomplete", "it broke"), 1, 0, (0, 0)),
        (ConnectionFailed("away"), 1, 0, (0, 0)),
        (TimedOut("too late"), 1, 0, (1, 0)),
        (Unexpected("random bytes: answer"), 0, 1, (0, 0)),
    ],
)
def test_what_is_lost_and_what_is_only_unexpected(
    ends: str | Exception, lost: int, unexpected: int, in_trouble: tuple[int, int]
) -> None:
    tally = visited(kind_that(ends=ends))
    assert (len(tally.lost), len(tally.unexpected)) == (lost, unexpected)
    tally = visited(kind_that(ends=ends), in_trouble=True)
    assert (len(tally.lost), len(tally.unexpected)) == in_trouble
    assert tally.outcomes.total() == 1


def test_troubles_touch_what_overlaps_them() -> None:
    async def run() -> Troubles:
        troubles = Troubles()
        async with troubles.one():
            assert troubles.touch(0, float("inf"))
        return troubles

    assert not asyncio.run(run()).touch(0, 1)


IDLE: Mapping[str, float] = {
    **{name if name.endswith(("}", "live")) else name + 'resource="x"}': 0.0 for name in HELD},
    'proteus_llm_ended_total{outcome="length"}': 12.0,
    'proteus_llm_ended_total{outcome="stop"}': 3.0,
    'proteus_encoder_cache_bytes{state="held"}': 5.0,
    'proteus_encoder_cache_bytes{state="max"}': 6.0,
    'proteus_prefix_cache_bytes{state="held"}': 8.0,
    'proteus_prefix_cache_bytes{state="allocated"}': 8.0,
    "proteus_encoder_cache_lookups_total": 9.0,
    "proteus_encoder_cache_hits_total": 4.0,
    'proteus_reserved_peak{resource="requests"}': 64.0,
    'proteus_draw_images_total{format="png"}': 4.0,
    'proteus_draw_images_total{format="webp"}': 1.0,
    "proteus_draw_unsent_images_total": 2.0,
    'proteus_draw_ended_total{outcome="done"}': 7.0,
    "proteus_prefix_cache_saved_seconds": -1.0,
}
AT_FIRST = Books(figures={}, choices={}, unseen_choices=0, images=0)
AT_LAST = Books(figures=IDLE, choices={"length": 10, "stop": 3}, unseen_choices=2, images=5)


def test_books_that_agree_have_no_fault() -> None:
    assert faults(AT_FIRST, AT_LAST, DEMO) == []
    assert faults(AT_LAST, replace(AT_LAST), DEMO) == [], "nothing happened since"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ('proteus_reserved{resource="x"}', 1, ["proteus_reserved", "is 1"]),
        ('proteus_llm_kv_bytes{state="used"}', 4096, ["kv_bytes", "4096"]),
        ('proteus_encoder_cache_bytes{state="held"}', 7, ["encoder cache holds 7 bytes of 6"]),
        ('proteus_prefix_cache_bytes{state="held"}', 9, ["prefix cache holds 9 bytes of 8"]),
        ("proteus_processor_cache_collisions_total", 1, ["processor cache had 1 collisions"]),
        ("proteus_encoder_cache_hits_total", 10, ["encoder cache had 10 hits in 9"]),
        ('proteus_reserved_peak{resource="requests"}', 65, ["proteus_reserved_peak of requests is 65, over 64"]),
        ('proteus_llm_ended_total{outcome="length"}', 9, ["9 answers ended by length", "saw 10"]),
        ('proteus_llm_ended_total{outcome="length"}', 13, ["13 answers ended by length", "left 2"]),
        ('proteus_draw_ended_total{outcome="done"}', 8, ["8 pictures were drawn, 5 sent and 2 not"]),
        ("proteus_draw_live", -1, ["proteus_draw_live is -1", "below 0"]),
        ("proteus_patches_used_total", 1, ["more patches"]),
    ],
)
def test_books_that_disagree_are_named(name: str, value: float, words: list[str]) -> None:
    found = faults(AT_FIRST, replace(AT_LAST, figures={**IDLE, name: float(value)}), DEMO)
    assert found
    assert all(word in " ".join(found) for word in words), found


def test_a_family_that_is_not_told_is_a_fault() -> None:
    figures = {name: value for name, value in IDLE.items() if name != "proteus_draw_live"}
    assert faults(AT_FIRST, replace(AT_LAST, figures=figures), DEMO) == ["proteus_draw_live is not told"]


def test_values_by_label() -> None:
    assert by_label(IDLE, "proteus_draw_images_total") == {"png": 4.0, "webp": 1.0}


def sample(pss_bytes: int) -> Sample:
    server, chat = (Held(processes=1, pss_bytes=pss_bytes // 2, rss_bytes=pss_bytes, files=3, threads=4),) * 2
    return Sample(by_role={"tritonserver": server, "chat": chat}, shm_bytes=pss_bytes // 10)


def result() -> Result:
    tally = Tally(outcomes=Counter({("text", "answer"): 8, ("bad", "invalid_request"): 2}), lost=["7 text: hung"])
    points = [Point(requests=number, sample=sample(1000 * 2**20 + number)) for number in range(0, 251, 10)]
    return Result(
        tally=tally,
        baseline=sample(1000 * 2**20),
        end=sample(1040 * 2**20),
        points=points,
        faults=[],
        filled_by=100,
        seconds=9.0,
    )


def test_records_have_the_names_and_ratios_of_the_issue() -> None:
    found = {record.name: record for record in records(result(), Course.of(250), "llm", "python -m perf.soak")}
    assert list(found) == ["memory", "shm", "lost"]
    assert (found["memory"].ratio, found["lost"].value, found["lost"].baseline) == (1.04, 1, 250)
    assert "invalid_request 2" in found["lost"].note
    assert "killed at 37" in found["memory"].note
    assert result().complaints == ["7 text: hung"]
    assert json.dumps([record.note for record in found.values()])


def test_tables_are_written_in_their_places_and_a_plot_is_drawn(tmp_path: Path) -> None:
    empty = "".join(
        f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n\n" for columns in (MEMORY_COLUMNS, OUTCOME_COLUMNS)
    )
    found = result()
    page = with_table(empty, MEMORY_COLUMNS, memory_rows(found.baseline, found.end))
    page = with_table(page, OUTCOME_COLUMNS, outcome_rows(found.tally))
    assert page == with_table(page, OUTCOME_COLUMNS, outcome_rows(found.tally))
    assert "| chat | 500.0 | 520.0 | 1.040 | 1,000.0 -> 1,040.0 | 3 -> 3 | 4 -> 4 |" in page
    assert "| text | 8 | answer 8 |" in page
    plot(found.points, Course.of(250), tmp_path / "plots" / "soak.png")
    with Image.open(tmp_path / "plots" / "soak.png") as picture:
        assert picture.size == (1200, 800)
