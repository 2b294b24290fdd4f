"""Profiles and the traces that are made of them."""

from __future__ import annotations

import io
import itertools
import statistics
import tomllib
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pydantic import TypeAdapter

from perf.replay.arrivals import Process, session_begins
from perf.replay.generate import generate
from perf.replay.pictures import make_picture, picture_file, question, wish
from perf.replay.profile import BadProfile, Profile
from perf.replay.results import Result
from perf.replay.spreads import Spread
from perf.replay.trace import BadTrace, ChatArrival, DrawArrival, Header, Objective, Trace, TracedPicture

PROFILES = Path(__file__).parents[2] / "perf" / "profiles"
PAGE = (Path(__file__).parents[2] / "docs" / "replay.md").read_text(encoding="utf-8")
CI = Profile.load(PROFILES / "ci.toml")
ARRIVALS: list[dict[str, Any]] = [
    {"process": "poisson"},
    {"process": "bursts", "burst_sessions": 6.0, "spread_s": 0.5},
    {"process": "on_off", "on_s": 2.0, "off_s": 3.0},
    {"process": "heavy_tail", "alpha": 2.5},
]
seeds = st.integers(0, 2**32)


def arrivals(told: dict[str, Any], sessions_per_s: float = 5.0) -> Any:
    return TypeAdapter(Process).validate_python({**told, "sessions_per_s": sessions_per_s})


def changed(**tables: Any) -> Profile:
    """The profile ci with other tables."""
    return Profile.model_validate({**tomllib.loads((PROFILES / "ci.toml").read_text()), **tables})


def chats(trace: Trace) -> list[ChatArrival]:
    return [request for request in trace.requests if isinstance(request, ChatArrival)]


@pytest.mark.parametrize("file", sorted(PROFILES.glob("*.toml")), ids=lambda file: file.stem)
def test_committed_profiles_are_named_as_their_files_and_give_traces(file: Path) -> None:
    profile = Profile.load(file)
    trace = generate(profile)
    assert profile.name == file.stem
    wanted = {modality for modality, weight in profile.modalities.items() if weight}
    assert {request.modality for request in trace.requests} == wanted


@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_the_same_seed_gives_the_same_trace_and_another_gives_another(seed: int) -> None:
    first = generate(CI, seed=seed)
    assert first == generate(CI, seed=seed)
    assert first.requests != generate(CI, seed=seed + 1).requests


@settings(max_examples=25, deadline=None)
@given(seed=seeds, told=st.sampled_from(ARRIVALS), seconds=st.floats(1, 60))
def test_requests_are_in_the_order_of_arrival_and_none_is_late(seed: int, told: dict[str, Any], seconds: float) -> None:
    trace = generate(changed(arrivals={**told, "sessions_per_s": 3.0}), seconds=seconds, seed=seed)
    moments_s = [request.arrival_s for request in trace.requests]
    assert moments_s == sorted(moments_s)
    assert all(0 <= moment_s < seconds for moment_s in moments_s)
    assert trace.header.requests == len(moments_s)


@settings(max_examples=15, deadline=None)
@given(seed=seeds, told=st.sampled_from(ARRIVALS))
def test_sessions_begin_at_the_rate_of_the_profile_however_they_come(seed: int, told: dict[str, Any]) -> None:
    begins_s = session_begins(arrivals(told), 20_000.0, Random(seed))
    assert len(begins_s) == pytest.approx(5.0 * 20_000, rel=0.08)


@pytest.mark.parametrize(
    ("told", "low", "high"),
    [(ARRIVALS[0], 0.9, 1.1), (ARRIVALS[1], 4, 25), (ARRIVALS[2], 3, 12)],
    ids=lambda value: value["process"] if isinstance(value, dict) else None,
)
def test_crowds_are_as_uneven_as_their_process(told: dict[str, Any], low: float, high: float) -> None:
    """Variance over mean of the number in a second: 1 for Poisson's, more for crowds."""
    begins_s = session_begins(arrivals(told), 20_000.0, Random(1))
    in_second = Counter(int(moment_s) for moment_s in begins_s)
    numbers = [in_second[second] for second in range(20_000)]
    assert low < statistics.variance(numbers) / statistics.mean(numbers) < high


def test_heavy_tail_has_gaps_that_poisson_has_not() -> None:
    longest = {}
    for name, told in (("poisson", ARRIVALS[0]), ("heavy", {"process": "heavy_tail", "alpha": 1.3})):
        begins_s = session_begins(arrivals(told), 5_000.0, Random(3))
        longest[name] = max(after - before for before, after in itertools.pairwise(begins_s))
    assert longest["heavy"] > 5 * longest["poisson"]


@pytest.fixture(scope="module")
def long() -> Trace:
    """Of enough sessions that a share is told from another."""
    return generate(CI, seconds=2_000.0, seed=4)


def test_shares_of_modalities_tenants_classes_and_cancels_are_those_of_the_profile(long: Trace) -> None:
    sessions = {request.session: request for request in long.requests}.values()
    modalities = Counter(request.modality for request in sessions)
    for modality, weight in CI.modalities.items():
        assert modalities[modality] / len(sessions) == pytest.approx(weight / 10, abs=0.02)
    tenants = Counter(request.tenant for request in sessions)
    assert tenants["blue"] / len(sessions) == pytest.approx(2 / 3, abs=0.02)
    batch = sum(request.latency_class == "batch" for request in sessions)
    assert batch / len(sessions) == pytest.approx(0.2, abs=0.02)
    cancelled = sum(request.cancel_after_s is not None for request in long.requests)
    assert cancelled / len(long.requests) == pytest.approx(0.1, abs=0.015)


def test_a_session_shows_pictures_again_as_often_as_the_profile_says(long: Trace) -> None:
    shown: dict[int, set[TracedPicture]] = {}
    again = later = 0
    for request in chats(long):
        known = shown.setdefault(request.session, set())
        if request.pictures and known:
            later += 1
            again += request.pictures[0] in known
        known.update(request.pictures)
    assert later > 500
    assert again / later == pytest.approx(0.6, abs=0.05)


def test_no_picture_is_shared_between_sessions_and_none_is_twice_in_a_request() -> None:
    owner: dict[int, int] = {}
    for request in chats(generate(CI, seconds=300.0)):
        assert len(set(request.pictures)) == len(request.pictures)
        for picture in request.pictures:
            assert owner.setdefault(picture.seed, request.session) == request.session


@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_lengths_and_sizes_stay_within_their_bounds(seed: int) -> None:
    trace = generate(CI, seed=seed)
    for request in chats(trace):
        assert 4 <= request.text_tokens <= 40
        assert 2 <= request.max_tokens <= 16
        assert len(request.pictures) <= 3
        for picture in request.pictures:
            assert picture.pixels <= 1_500_000 * 1.02
            assert max(picture.width_px / picture.height_px, picture.height_px / picture.width_px) < 2.1
    drawings = [request for request in trace.requests if isinstance(request, DrawArrival)]
    assert {request.steps for request in drawings} <= {4, 8}


@pytest.mark.parametrize(
    ("told", "mean", "least", "most"),
    [
        ({"distribution": "fixed", "value": 3}, 3, 3, 3),
        ({"distribution": "uniform", "min": 2, "max": 4}, 3, 2, 4),
        ({"distribution": "lognormal", "median": 10, "sigma": 0.5}, 11.33, 0, 200),
        ({"distribution": "pareto", "min": 2, "alpha": 3}, 3, 2, 1_000),
        ({"distribution": "geometric", "mean": 2.5}, 2.5, 1, 100),
        ({"distribution": "geometric", "mean": 1}, 1, 1, 1),
        ({"distribution": "lognormal", "median": 10, "sigma": 2, "min": 8, "max": 12}, 10, 8, 12),
    ],
)
def test_spreads_have_their_mean_and_keep_their_bounds(
    told: dict[str, Any], mean: float, least: float, most: float
) -> None:
    spread: Any = TypeAdapter(Spread).validate_python(told)
    rng = Random(0)
    drawn = [spread.draw(rng) for _ in range(20_000)]
    assert statistics.mean(drawn) == pytest.approx(mean, rel=0.05)
    assert least <= min(drawn) <= max(drawn) <= most


def test_a_trace_is_read_as_it_was_written_and_holds_no_content(tmp_path: Path) -> None:
    trace = generate(CI)
    file = tmp_path / "deep" / "trace.jsonl"
    trace.write(file)
    assert Trace.read(file) == trace
    assert trace.header.objectives["interactive"] == Objective(ttft_ms=1000, inter_token_ms=100, draw_ms=4000)
    assert not {"text", "prompt", "data"} & set(file.read_text().split('"'))


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda lines: lines[1:], "begins with its header"),
        (lambda lines: [], "begins with its header"),
        (lambda lines: lines[:-1], "which tells of"),
        (lambda lines: [lines[0], *reversed(lines[1:])], "not in the order of arrival"),
        (lambda lines: [lines[0].replace('"version":1', '"version":2'), *lines[1:]], "version"),
        (lambda lines: [lines[0], '{"kind":"sing"}', *lines[2:]], ":2: the line"),
        (lambda lines: [lines[0], lines[1].replace('"tenant"', '"owner"'), *lines[2:]], ":2: chat."),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(tmp_path: Path, edit: Any, words: str) -> None:
    file = tmp_path / "trace.jsonl"
    generate(CI).write(file)
    file.write_text("".join(line + "\n" for line in edit(file.read_text().splitlines())))
    with pytest.raises(BadTrace) as caught:
        Trace.read(file)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seconds = 6.0", "seconds = ", "Invalid value"),
        ('process = "poisson"', 'process = "sometimes"', "arrivals"),
        ("repeat = 0.6", "repeat = 6", "sessions.repeat"),
        ("repeat = 0.6", "repeats = 0.6", "sessions.repeats"),
        ("blue = 2", "blue = -2", "weights are at least 0"),
        ("share = 0.8", "share = 0", "share above 0"),
        ("[draw]", "[drawn]", "add a table [draw]"),
        ("median = 12,", "", "text.prompt_tokens"),
        ("seconds = 6.0", "seconds = 1e9", "seconds"),
        ("text = 4", "text = inf", "modalities"),
        ("mean = 1.6, max = 3", "mean = 1.6, min = 4, max = 3", "min = 4 is above max = 3"),
        ("mean = 1.6", "mean = nan", "sessions.turns"),
        ("sigma = 0.5", "sigma = 500", "text.prompt_tokens"),
        ("min = 0.3, max = 1.0", "min = 3, max = 1.0", "sessions.think_s"),
        ("min = 0.3, max = 1.0", "min = -3, max = 1.0", "sessions.think_s"),
        ('"64x64" = 1', '"banana" = 1', "draw.sizes.banana"),
        ('"64x64" = 1', '"0x64" = 1', "draw.sizes.0x64"),
        ("4 = 1, 8 = 1", "0 = 1", "draw.steps.0"),
        ('"2.0" = 1', '"0.5" = 1', "draw.guidance.0.5"),
        ("[pictures]", "[pictures]\nmax_aspect_ratio = inf", "pictures.max_aspect_ratio"),
    ],
)
def test_a_wrong_profile_is_refused_with_the_key(tmp_path: Path, old: str, new: str, words: str) -> None:
    text = (PROFILES / "ci.toml").read_text().replace(old, new, 1)
    if words.startswith("share"):
        text = text.replace("share = 0.2", "share = 0")
    if words.startswith("add"):
        text = text.replace("[drawn]", "").split("sizes = ")[0] + text[text.index("[tenants]") :]
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(BadProfile) as caught:
        Profile.load(file)
    assert words in str(caught.value)


def test_a_profile_that_cannot_be_read_is_told_plainly(tmp_path: Path) -> None:
    with pytest.raises(BadProfile, match="no such file"):
        Profile.load(tmp_path / "none.toml")
    with pytest.raises(BadProfile, match="is a directory"):
        Profile.load(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadProfile, match="not UTF-8"):
        Profile.load(tmp_path / "bytes.toml")


@pytest.mark.parametrize(
    ("table", "told", "words"),
    [
        ("arrivals", {"process": "poisson", "sessions_per_s": 1e12}, "lower sessions_per_s, turns or seconds"),
        ("pictures.pixels", {"distribution": "fixed", "value": 1e15}, "make it smaller"),
        ("pictures.number", {"distribution": "fixed", "value": 1e8}, "at most 64"),
        ("text.prompt_tokens", {"distribution": "pareto", "min": 1e18, "alpha": 0.1}, "text_tokens"),
    ],
)
def test_a_profile_that_asks_for_too_much_is_refused_before_memory_is_full(
    table: str, told: dict[str, Any], words: str
) -> None:
    outer, _, inner = table.partition(".")
    profile = tomllib.loads((PROFILES / "ci.toml").read_text())
    if inner:
        profile[outer][inner] = told
    else:
        profile[outer] = told
    with pytest.raises(BadProfile, match=words):
        generate(Profile.model_validate(profile))


def test_a_trace_longer_than_a_day_is_refused() -> None:
    with pytest.raises(BadProfile, match="a day"):
        generate(CI, seconds=1e6)


def test_a_trace_that_cannot_be_read_is_told_plainly(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="no such file"):
        Trace.read(tmp_path / "none.jsonl")
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(BadTrace, match="not UTF-8"):
        Trace.read(tmp_path / "bytes.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(BadTrace, match="begins with its header"):
        Trace.read(tmp_path / "empty.jsonl")


@pytest.mark.parametrize(
    ("width_px", "height_px", "format_"), [(16_384, 1, "webp"), (65_501, 1, "jpeg"), (20_000, 20_000, "png")]
)
def test_a_picture_that_nobody_can_make_is_in_no_trace(width_px: int, height_px: int, format_: Any) -> None:
    with pytest.raises(ValueError, match="make it smaller"):
        TracedPicture(seed=1, width_px=width_px, height_px=height_px, format=format_)


@pytest.mark.parametrize("format_", ["png", "jpeg", "webp"])
def test_a_picture_is_the_same_bytes_whenever_it_is_made(tmp_path: Path, format_: Any) -> None:
    picture = TracedPicture(seed=7, width_px=123, height_px=77, format=format_)
    made = make_picture(picture)
    assert made == make_picture(picture)
    assert picture_file(picture, tmp_path) == picture_file(picture, tmp_path) == made
    assert [file.name for file in tmp_path.iterdir()] == [f"7-123x77.{format_}"]
    assert make_picture(picture.model_copy(update={"seed": 8})) != made
    with Image.open(io.BytesIO(made)) as opened:
        assert (opened.size, opened.format) == ((123, 77), format_.upper())


def test_texts_have_the_length_that_was_asked_for_and_are_those_of_their_seed() -> None:
    assert len(question(3, 17).split()) == 17
    assert question(3, 17) == question(3, 17) != question(4, 17)
    assert wish(3) == wish(3) != wish(4)


@pytest.mark.parametrize("name", [*Header.model_fields, *ChatArrival.model_fields, *DrawArrival.model_fields])
def test_the_page_tells_every_field_of_a_trace(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", sorted(Result.model_fields))
def test_the_page_tells_every_field_of_a_result(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("file", sorted(PROFILES.glob("*.toml")), ids=lambda file: file.stem)
def test_the_page_tells_every_committed_profile_and_how_many_requests_it_makes(file: Path) -> None:
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| `perf/profiles/{file.name}`"))
    assert f"| {generate(Profile.load(file)).header.requests} |" in row
