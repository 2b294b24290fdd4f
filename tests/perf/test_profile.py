"""What perf_analyzer says is read right, no file is so short that caches answer, and the page shows the results."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.progress import Progress

from perf.analyzer import Measured, WindowTooShort, command, measured
from perf.input_data import Load
from perf.profile import Bench, first_of_each_model, sweep
from perf.profile_page import BEGIN, END, PAGE, Row, page, read_results, table
from proteus.contract import CHAT, IMAGE_TOKENS, VISION_ENCODER
from proteus.launcher import LaunchFailed

COUPLED = {
    "Concurrency": "4",
    "Inferences/Second": "509.382",
    "Server Queue": "1205",
    "Server Compute Input": "64",
    "Server Compute Infer": "4859",
    "Server Compute Output": "255",
    "p50 latency": "6880",
    "p95 latency": "12313",
    "p99 latency": "23406",
}
SAID = "  Client: \n    Request count: 1104\n    Throughput: 509.382 infer/sec\n"
FOUND = Measured(
    requests=1104,
    per_s=509.382,
    responses_per_s=None,
    p50_ms=6.88,
    p95_ms=12.313,
    p99_ms=23.406,
    queue_ms=1.205,
    compute_ms=5.178,
)


def test_row_of_its_table_is_read() -> None:
    assert measured(COUPLED, SAID, decoupled=False) == FOUND
    decoupled = measured({**COUPLED, "Response Throughput": "2462.02"}, SAID, decoupled=True)
    assert decoupled == replace(FOUND, responses_per_s=2462.02, queue_ms=None, compute_ms=None)


def test_queue_of_an_ensemble_is_that_of_its_steps() -> None:
    steps = "  Composing models: \n      (overhead 4 usec + queue 1120 usec + compute infer 855 usec)\n"
    steps += "      (overhead 3 usec + queue 5812 usec + compute infer 5940 usec)\n"
    assert measured({**COUPLED, "Server Queue": "33"}, SAID + steps, decoupled=False).queue_ms == 6.932


def test_output_without_a_count_is_no_measurement() -> None:
    with pytest.raises(LaunchFailed, match="no request count"):
        measured(COUPLED, "Request concurrency: 4", decoupled=False)


def test_only_decoupled_models_are_streamed() -> None:
    assert "--streaming" in command(CHAT, "host:1", Path("a.json"))
    assert "--streaming" not in command(IMAGE_TOKENS, "host:1", Path("a.json"))


@dataclass
class Server:
    """perf_analyzer and Triton's statistics in one: a model that answers `per_s` requests a second."""

    per_s: float
    shortest_ms: int = 0  # in a shorter window no request ends
    answered: int = 0
    files: list[int] = field(default_factory=list)  # requests in each
    windows: list[tuple[int, int]] = field(default_factory=list)  # (concurrency, ms) of each run

    def measure(self, _spec: Any, _url: str, file: Path, *, concurrency: int, window_ms: int) -> Measured:
        if window_ms < self.shortest_ms:
            raise WindowTooShort("No valid requests recorded")
        self.files.append(len(json.loads(file.read_text())["data"]))
        self.windows.append((concurrency, window_ms))
        self.answered += round(self.per_s * (3 * window_ms / 1e3 + 0.3))
        return replace(FOUND, per_s=self.per_s)

    def get_inference_statistics(self, _model: str) -> Any:
        success = SimpleNamespace(count=self.answered)
        return SimpleNamespace(model_stats=[SimpleNamespace(inference_stats=SimpleNamespace(success=success))])


def asked(server: Server, folder: Path, *, cached: bool = True) -> list[Row]:
    bench = Bench(analyzer=server, url="", client=server, folder=folder)  # type: ignore[arg-type]
    load = Load(spec=IMAGE_TOKENS, bucket="1 MP", request=lambda number: {"n": {"number": number}}, cached=cached)
    return sweep(bench, load, (1, 2, 4, 8, 16), 600, Progress(disable=True))


def test_slow_models_are_asked_fewer_times_in_longer_windows(tmp_path: Path) -> None:
    server = Server(per_s=4.0)
    assert [row.concurrency for row in asked(server, tmp_path)] == [1, 4, 16]
    assert server.windows[1:] == [(1, 600), (4, 1000), (16, 4000)]


def test_files_outlast_the_run_where_a_cache_would_answer(tmp_path: Path) -> None:
    server = Server(per_s=400.0)
    assert [row.concurrency for row in asked(server, tmp_path)] == [1, 2, 4, 8, 16]
    # The first file was too short for so fast a model, and was measured again.
    assert server.windows[:2] == [(1, 200), (1, 200)] and server.files[0] < 400 * 0.9 <= server.files[1]
    runs = zip(server.files[2:], server.windows[2:], strict=True)
    assert all(requests >= 400 * (3 * window_ms / 1e3 + 0.3) for requests, (_, window_ms) in runs)


def test_files_are_short_where_no_cache_would_answer(tmp_path: Path) -> None:
    server = Server(per_s=400.0)
    asked(server, tmp_path, cached=False)
    assert set(server.files) == {16}


def test_windows_grow_until_something_ends(tmp_path: Path) -> None:
    server = Server(per_s=10.0, shortest_ms=1500)
    asked(server, tmp_path)
    assert [window_ms for _, window_ms in server.windows] == [1600, 2400, 2400, 2400, 1600, 1600]


def test_quick_runs_ask_each_model_its_first_bucket() -> None:
    buckets = itertools.product((CHAT, VISION_ENCODER), ("a", "b"))
    loads = [Load(spec=spec, bucket=bucket, request=lambda _: {}, cached=False) for spec, bucket in buckets]
    assert [(load.model, load.bucket) for load in first_of_each_model(loads)] == [
        ("chat", "a"),
        ("vision_encoder", "a"),
    ]


def test_mean_to_the_last_response_is_told_by_what_is_open() -> None:
    assert Row("chat", "text", 4, replace(FOUND, per_s=80.0)).e2e_ms == 50.0


def test_table_goes_between_the_marks() -> None:
    rows = [Row("chat", "text", 4, FOUND)]
    wanted = f"a\n{BEGIN}Measured: quietly.\n\n{table(rows)}{END}\nb"
    assert page(f"a\n{BEGIN}old{END}\nb", rows, "quietly") == wanted


def test_page_shows_the_results() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text, *read_results()) == text
