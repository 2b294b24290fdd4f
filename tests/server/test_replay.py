"""A replay of the profile ci against a real server: every request is accounted for, and both sides tell the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perf.replay.__main__ import main
from perf.replay.report import PAGE, RESULTS, SUMMARY, TRACE
from perf.replay.results import read_results
from perf.replay.trace import Trace
from proteus.launcher import Server
from proteus.stages import STAGES

PROFILE = Path(__file__).parents[2] / "perf" / "profiles" / "ci.toml"


@pytest.fixture(scope="module")
def folder(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run."""
    made = tmp_path_factory.mktemp("replay")
    words = ["all", str(PROFILE), "--url", server.ports.grpc_url, "--out", str(made), "--json"]
    assert main(words) == 0
    return made


def test_every_request_of_the_trace_is_answered_cancelled_or_refused(folder: Path) -> None:
    trace, results = Trace.read(folder / TRACE), read_results(folder / RESULTS)
    assert sorted(result.line for result in results) == list(range(1, len(trace.requests) + 1))
    summary = json.loads((folder / SUMMARY).read_text())
    total = summary["total"]
    ends = total["ok"] + total["cancelled"] + total["refused"] + total["failed"]
    assert ends == total["requests"] == summary["lines"] == len(trace.requests)
    assert (summary["missing"], total["failed"]) == (0, 0)
    assert (folder / PAGE).stat().st_size > 10_000


def test_answers_have_the_length_that_the_trace_asks_for(folder: Path) -> None:
    requests = Trace.read(folder / TRACE).requests
    for result in read_results(folder / RESULTS):
        request = requests[result.line - 1]
        if result.is_ok and result.modality != "draw":
            assert result.usage["output_tokens"] == request.n * request.max_tokens  # type: ignore[union-attr]
        elif result.is_ok:
            assert result.usage["images"] == request.n


def test_server_and_client_agree_on_sizes_and_on_how_long_it_took(folder: Path) -> None:
    for result in read_results(folder / RESULTS):
        if not result.is_ok or result.modality == "draw":
            continue
        assert result.size is None or result.size in {medium["size"] for medium in result.media}
        assert result.first_s is not None
        assert result.ttft_ms is not None
        assert result.ttft_ms <= (result.first_s - result.sent_s) * 1e3 + 1
        before_decode = [ms for stage, ms in result.stages_ms.items() if stage not in ("decode", "total")]
        assert sum(before_decode) == pytest.approx(result.ttft_ms, abs=0.02)
        assert set(result.stages_ms) <= {*STAGES, "total"}


def test_pictures_that_a_session_shows_again_are_found_in_a_cache(folder: Path) -> None:
    summary = json.loads((folder / SUMMARY).read_text())
    assert summary["caches"]["encoder"]["hits"] > 0
    assert summary["caches"]["encoder"]["lookups"] > summary["caches"]["encoder"]["hits"]
