"""What a run's results are worth: percentiles, goodput, groups, and what is counted as what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perf.replay.results import Result, read_results
from perf.replay.score import Percentiles, keeps, kind_of, open_over_time, percentile, size_order, summarise
from perf.replay.trace import Header, Objective

HEADER = Header(
    profile="made",
    seed=0,
    seconds=10.0,
    requests=8,
    objectives={"interactive": Objective(ttft_ms=100, inter_token_ms=20, draw_ms=1000), "batch": Objective()},
)


def result(line: int = 1, **told: Any) -> Result:
    """Text that arrived at second 1, was sent 1 ms later and answered within 100 ms, but for what is told."""
    usual = {
        "modality": "text",
        "size": None,
        "tenant": "blue",
        "session": 0,
        "latency_class": "interactive",
        "arrival_s": 1.0,
        "sent_s": 1.001,
        "first_s": 1.05,
        "end_s": 1.1,
        "gaps_ms": (10.0, 20.0),
        "outcome": "ok",
        "usage": {"output_tokens": 3},
    }
    return Result.model_validate({**usual, "line": line, **told})


def some_results() -> list[Result]:
    medium = {"size": "1 MP", "downscaled": True}
    once = {"processor": {"lookups": 2, "hits": 1, "saved_ms": 5.0}, "prefix": {"lookups": 1, "hits": 1, "tokens": 32}}
    twice = {"processor": {"lookups": 1, "hits": 0, "saved_ms": 0.0}}
    image = {"modality": "image", "size": "1 MP", "tenant": "green", "session": 1}
    draw = {"modality": "draw", "size": "64x64", "first_s": None, "gaps_ms": (), "usage": {"images": 1}}
    return [
        result(1, stages_ms={"ingress": 1.0, "prefill": 3.0, "total": 4.0}, ttft_ms=4.0),
        result(2, first_s=1.2, end_s=1.3, stages_ms={"ingress": 3.0, "lm_queue": 2.0, "total": 5.0}, ttft_ms=5.0),
        result(3, **image, media=(medium, {"downscaled": False}), caches=once),
        result(4, **image, media=(medium, medium), caches=twice, latency_class="batch", first_s=3.0, end_s=4.0),
        result(5, outcome="queue_full", error="queue_full: …", first_s=None, gaps_ms=()),
        result(6, outcome="connection_failed", error="gone", first_s=None, gaps_ms=()),
        result(7, outcome="cancelled", end_s=5.0),
        result(8, **draw, end_s=1.8, stages_ms={"denoise": 700.0, "total": 800.0}),
    ]


@pytest.mark.parametrize(
    ("values", "p", "expected"),
    [
        ([5.0], 50, 5.0),
        ([5.0], 99, 5.0),
        ([1.0, 2.0], 50, 1.0),
        ([1.0, 2.0], 51, 2.0),
        ([float(value) for value in range(1, 101)], 50, 50.0),
        ([float(value) for value in range(1, 101)], 95, 95.0),
        ([float(value) for value in range(1, 101)], 99, 99.0),
        ([float(value) for value in range(1, 11)], 99, 10.0),
    ],
)
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(
    values: list[float], p: float, expected: float
) -> None:
    assert percentile(values, p) == expected


def test_percentiles_of_nothing_are_none() -> None:
    assert Percentiles.of([]) is None
    assert Percentiles.of([3.0, 1.0]) == Percentiles(count=2, p50=1.0, p95=3.0, p99=3.0, mean=2.0, max=3.0)


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        ("ok", "ok"),
        ("cancelled", "cancelled"),
        ("queue_full", "refused"),
        ("deadline_exceeded", "refused"),
        ("invalid_picture", "refused"),
        ("unavailable", "failed"),
        ("connection_failed", "failed"),
        ("timed_out", "failed"),
        ("triton", "failed"),
    ],
)
def test_the_servers_no_is_a_refusal_and_other_errors_are_failures(outcome: str, kind: str) -> None:
    assert kind_of(outcome) == kind


@pytest.mark.parametrize(
    ("told", "is_kept"),
    [
        ({}, True),
        ({"first_s": 1.0999}, True),
        ({"first_s": 1.1001}, False),
        ({"gaps_ms": (21.0, 20.0)}, False),
        ({"gaps_ms": ()}, True),
        ({"latency_class": "batch", "first_s": 9.0, "end_s": 9.0}, True),
        ({"modality": "draw", "first_s": None, "end_s": 1.9}, True),
        ({"modality": "draw", "first_s": None, "end_s": 2.1}, False),
    ],
)
def test_an_answer_is_good_within_the_objective_of_its_class(told: dict[str, Any], is_kept: bool) -> None:
    made = result(**told)
    assert keeps(made, HEADER.objectives.get(made.latency_class)) is is_kept


def test_every_request_is_counted_once_in_total_and_in_each_way_to_group() -> None:
    summary = summarise(HEADER, some_results())
    total = summary.total
    assert (total.requests, total.ok, total.cancelled, total.refused, total.failed) == (8, 5, 1, 1, 1)
    assert summary.missing == 0
    for groups in (summary.by_modality, summary.by_tenant, summary.by_class):
        assert sum(group.requests for group in groups.values()) == 8
    assert {name: group.requests for name, group in summary.by_modality.items()} == {"text": 5, "image": 2, "draw": 1}
    assert {name: group.requests for name, group in summary.by_size.items()} == {"1 MP": 2, "64x64": 1}
    assert dict(summary.outcomes)["queue_full"] == 1


def test_rates_are_over_the_time_to_the_last_end_and_goodput_is_of_all_but_the_cancelled() -> None:
    summary = summarise(HEADER, some_results())
    assert summary.seconds == 5.0
    assert summary.total.throughput_per_s == 5 / 5.0
    assert summary.total.output_tokens_per_s == 12 / 5.0
    assert summary.total.goodput_per_s == 4 / 5.0  # the second was late
    assert summary.total.goodput_share == 4 / 7
    assert summary.by_class["batch"].goodput_share == 1.0


def test_times_begin_with_the_planned_arrival_and_leave_drawings_out_where_they_have_none() -> None:
    summary = summarise(HEADER, some_results())
    assert summary.total.ttft_ms is not None
    assert (summary.total.ttft_ms.count, summary.total.ttft_ms.max) == (4, pytest.approx(2000.0))
    assert summary.by_modality["draw"].ttft_ms is None
    assert summary.total.inter_token_ms is not None
    assert (summary.total.inter_token_ms.count, summary.total.inter_token_ms.p50) == (8, 10.0)
    assert summary.lateness_ms is not None
    assert (summary.lateness_ms.p99, summary.is_late) == (pytest.approx(1.0), False)
    assert summary.server_ttft_ms is not None
    assert summary.server_ttft_ms.max == 5.0


def test_a_sender_without_a_core_is_not_believed() -> None:
    assert summarise(HEADER, [result(sent_s=1.05)]).is_late


def test_downscaled_pictures_and_cache_hits_are_added_up() -> None:
    summary = summarise(HEADER, some_results())
    assert (summary.downscaled_pictures, summary.total.downscaled) == (3, 2)
    processor, prefix = summary.caches["processor"], summary.caches["prefix"]
    assert (processor.lookups, processor.hits, processor.saved_ms) == (3, 1, 5.0)
    assert (prefix.lookups, prefix.tokens, prefix.saved_ms) == (1, 32, 0)


def test_mean_stages_count_a_stage_that_was_not_passed_as_zero_and_add_up_to_the_mean_total() -> None:
    stages = summarise(HEADER, some_results()).stages_ms
    assert stages["text"] == {"ingress": 2.0, "prefill": 1.5, "lm_queue": 1.0}
    assert stages["draw"] == {"denoise": 700.0}
    assert "image" not in stages


def test_open_requests_are_counted_from_when_they_were_sent_to_their_end() -> None:
    results = [result(sent_s=1.0, first_s=2.0, end_s=4.0), result(sent_s=3.0, first_s=3.5, end_s=5.0)]
    assert open_over_time(results) == [(1.0, 1), (3.0, 2), (4.0, 1), (5.0, 0)]
    assert open_over_time(results, until_first=True) == [(1.0, 1), (2.0, 0), (3.0, 1), (3.5, 0)]
    assert summarise(HEADER, results).max_open == 2


def test_a_run_that_was_stopped_tells_what_is_missing_and_an_empty_one_has_no_times() -> None:
    assert summarise(HEADER, some_results()[:3]).missing == 5
    nothing = summarise(HEADER, [])
    assert (nothing.missing, nothing.total.ok, nothing.total.ttft_ms, nothing.lateness_ms) == (8, 0, None, None)


def test_sizes_are_told_the_least_first_and_drawings_last() -> None:
    sizes = ["96x64", "over 256 MP", "16 MP", "64x64", "0.25 MP", "1 MP"]
    assert sorted(sizes, key=size_order) == ["0.25 MP", "1 MP", "16 MP", "over 256 MP", "64x64", "96x64"]


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text("".join(one.model_dump_json(exclude_defaults=True) + "\n" for one in some_results()))
    assert read_results(file) == some_results()
