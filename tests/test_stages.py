"""Where a request's time went: stages that add up to the nanosecond, whatever the models say of themselves."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus.stages import STAGES, EncodeMarks, IngressPart, Stage, Stopwatch, Timeline, Times

SECOND = 10**9  # ns
NO_SPAN = (0, 0)
BEFORE_FIRST_TOKEN = STAGES[:-1]


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class NsClock:
    """Nanoseconds that pass only when told."""

    def __init__(self, now_ns: int = 100 * SECOND) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns


def in_ns(ms: float) -> int:
    return round(ms * 1e6)


def test_stages_add_up_by_name_and_total_runs_from_the_start() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    for _ in range(2):
        with watch.stage("encode"):
            clock.now_s += 0.25
    clock.now_s += 1
    watch.add("decode", 7.0)
    assert (watch.ms("encode"), watch.ms("queue")) == (500.0, 0.0)
    assert watch.report_ms() == {"encode": 500.0, "decode": 7.0, "transfer": 993.0, "total": 1500.0}


def test_stage_that_fails_is_timed_too() -> None:
    clock = Clock()
    watch = Stopwatch(clock)

    def fail() -> None:
        with watch.stage("plan"):
            clock.now_s += 0.5
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert watch.report_ms()["plan"] == 500.0


def text_request(clock: NsClock) -> Timeline:
    """In seconds: sent 1 before it arrived; parts 2, hops 1; admission 3; queue and prefill 4; hops 5."""
    timeline = Timeline(clock)
    timeline.sent(clock.now_ns - SECOND)
    with timeline.ingress("parse"):
        clock.now_ns += SECOND
    with timeline.ingress("plan"):
        clock.now_ns += SECOND
    clock.now_ns += SECOND
    timeline.ready()
    with timeline.stage("admission"):
        clock.now_ns += 3 * SECOND
    clock.now_ns += 9 * SECOND
    timeline.add("lm_queue", 1 * SECOND)
    timeline.add("prefill", 3 * SECOND)
    return timeline


def test_every_stage_of_a_request_is_told_in_order() -> None:
    clock = NsClock()
    timeline = text_request(clock)
    timeline.tokens(0, 1)
    clock.now_ns += 6 * SECOND
    assert timeline.report() == Times(
        stages_ms={
            "ingress": 4000.0,
            "admission": 3000.0,
            "transfer": 5000.0,
            "lm_queue": 1000.0,
            "prefill": 3000.0,
            "decode": 6000.0,
        },
        ingress_ms={"transport": 1000.0, "parse": 1000.0, "plan": 1000.0},
        ttft_ms=16_000.0,
        total_ms=22_000.0,
        mean_inter_token_ms=None,
        longest_inter_token_ms=None,
        first_index=0,
    )


def test_request_that_ends_without_a_token_has_no_time_to_it() -> None:
    clock = NsClock()
    timeline = text_request(clock)
    clock.now_ns += SECOND
    times = timeline.report()
    assert (times.ttft_ms, times.total_ms, times.stages_ms["decode"]) == (None, 17_000.0, 0.0)
    assert times.stages_ms["transfer"] == 6000.0
    assert (times.mean_inter_token_ms, times.longest_inter_token_ms) == (None, None)


def test_stage_that_fails_and_part_that_fails_are_timed_in_ns_too() -> None:
    clock = NsClock()
    timeline = Timeline(clock)
    with suppress(RuntimeError), timeline.ingress("parse"):
        clock.now_ns += SECOND
        raise RuntimeError
    with suppress(RuntimeError), timeline.stage("admission"):
        clock.now_ns += SECOND
        raise RuntimeError
    times = timeline.report()
    assert times.stages_ms == {"ingress": 1000.0, "admission": 1000.0, "transfer": 0.0, "decode": 0.0}


@pytest.mark.parametrize(
    ("age_ns", "believed"),
    [(0, True), (1, True), (60 * SECOND, True), (60 * SECOND + 1, False), (-1, False), (-(10**15), False)],
)
def test_a_client_is_believed_when_it_says_that_it_sent_some_seconds_ago(age_ns: int, believed: bool) -> None:
    clock = NsClock()
    timeline = Timeline(clock)
    timeline.sent(clock.now_ns - age_ns)
    times = timeline.report()
    assert times.ingress_ms == ({"transport": age_ns / 1e6} if believed else {})
    assert in_ns(times.total_ms) == (age_ns if believed else 0)


def test_waits_between_tokens_are_those_of_the_answer_that_speaks_first() -> None:
    clock = NsClock()
    timeline = Timeline(clock)
    for wait_s, index, count in ((1, 1, 2), (1, 0, 1), (1, 1, 1), (5, 0, 7), (1, 1, 1)):
        clock.now_ns += wait_s * SECOND
        timeline.tokens(index, count)
    times = timeline.report()
    assert timeline.first_index == 1
    assert times.ttft_ms == 1000.0
    assert times.mean_inter_token_ms == pytest.approx(8000 / 3), "four tokens, two of them at once"
    assert times.longest_inter_token_ms == 6000.0


MARKS = EncodeMarks(preprocess=(10, 30), encoder=(40, 70), connector=(75, 80))


@pytest.mark.parametrize(
    ("marks", "begun_ns", "done_ns", "stages"),
    [
        (MARKS, 0, 100, {"preprocess": 30, "encoder_queue": 10, "encode": 30, "connector": 10}),
        # Another request had begun it: what was over before does not count, and what was under way only in part.
        (MARKS, 50, 100, {"preprocess": 0, "encoder_queue": 0, "encode": 20, "connector": 10}),
        (MARKS, 90, 100, {"preprocess": 0, "encoder_queue": 0, "encode": 0, "connector": 0}),
        # Nothing lasts longer than somebody waited.
        (MARKS, 0, 60, {"preprocess": 30, "encoder_queue": 10, "encode": 20, "connector": 0}),
        # Native backends have no clock: zeros.
        (
            EncodeMarks(preprocess=(10, 30), encoder=NO_SPAN, connector=NO_SPAN),
            0,
            100,
            {"preprocess": 30, "encode": 70},
        ),
        (
            EncodeMarks(preprocess=(10, 30), encoder=(40, 70), connector=NO_SPAN),
            0,
            100,
            {"preprocess": 30, "encoder_queue": 10, "encode": 30},
        ),
    ],
)
def test_marks_of_a_picture_are_shared_out_over_the_wait_for_it(
    marks: EncodeMarks, begun_ns: int, done_ns: int, stages: dict[Stage, int]
) -> None:
    assert marks.stages_ns(begun_ns, done_ns) == stages


moments = st.integers(0, 10**13)
spans = st.one_of(st.just(NO_SPAN), st.tuples(moments, moments))
waits = st.integers(0, 10**12)


@given(marks=st.builds(EncodeMarks, preprocess=spans, encoder=spans, connector=spans), wait=st.tuples(moments, waits))
def test_stages_of_a_picture_are_never_negative_nor_longer_than_the_wait(
    marks: EncodeMarks, wait: tuple[int, int]
) -> None:
    begun_ns, waited_ns = wait
    stages = marks.stages_ns(begun_ns, begun_ns + waited_ns)
    assert all(ns >= 0 for ns in stages.values())
    assert sum(stages.values()) <= waited_ns
    order = [STAGES.index(stage) for stage in stages]
    assert all(one < other for one, other in pairwise(order))


measured = st.dictionaries(st.sampled_from([stage for stage in STAGES if stage not in ("transfer", "decode")]), waits)
parts = st.lists(st.tuples(st.sampled_from(get_args(IngressPart)), waits), max_size=6)
said = st.lists(st.tuples(waits, st.integers(0, 3), st.integers(1, 5)), max_size=8)


@given(parts=parts, measured=measured, said=said, sent=st.integers(-(10**12), 10**12), end=waits)
def test_stages_add_up_to_the_whole_and_up_to_the_first_token(
    parts: list[tuple[IngressPart, int]],
    measured: dict[Stage, int],
    said: list[tuple[int, int, int]],
    sent: int,
    end: int,
) -> None:
    """Whatever was measured, by clocks that may be wrong: no stage claims time that there was not."""
    clock = NsClock(10**13)
    timeline = Timeline(clock)
    timeline.sent(clock.now_ns - sent)
    for part, ns in parts:
        with timeline.ingress(part):
            clock.now_ns += ns
    timeline.ready()
    for stage, ns in measured.items():
        timeline.add(stage, ns)
    for ns, index, count in said:
        clock.now_ns += ns
        timeline.tokens(index, count)
    clock.now_ns += end
    times = timeline.report()

    stages = {stage: in_ns(ms) for stage, ms in times.stages_ms.items()}
    assert all(ns >= 0 for ns in stages.values())
    assert list(stages) == [stage for stage in STAGES if stage in stages]
    assert stages.keys() == {"ingress", "transfer", "decode", *measured}, "what did not take place is left out"
    assert sum(stages.values()) == in_ns(times.total_ms)
    if times.ttft_ms is not None:
        assert sum(stages.get(stage, 0) for stage in BEFORE_FIRST_TOKEN) == in_ns(times.ttft_ms)
    if times.mean_inter_token_ms is not None and times.longest_inter_token_ms is not None:
        assert 0 <= times.mean_inter_token_ms <= times.longest_inter_token_ms + 1e-6
