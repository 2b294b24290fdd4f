"""perf.engine: what is counted as decoding, how turns are compared, and that who fails is left out and says why."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from perf import performance
from perf.engine import compete, mixed, together
from perf.peers.child import Job, Recorder, Seconds, Turn, done
from perf.peers.environments import PeerFailed
from perf.peers.process import Contestant
from perf.peers.rounds import Rounds

CORE = min(os.sched_getaffinity(0))
HELLO = """
import json, sys
print(json.dumps({"versions": {"a": "1"}, "start_s": 0.0}), flush=True)
"""
COUNTS = """
zero = {"cpu": 1.0, "wall": 2.0}
for line in sys.stdin:
    job = json.loads(line)
    ids = [list(range(tokens)) for tokens in job["wanted"]]
    print(json.dumps({"ids": ids, "decode_tokens": 10, "decode_s": zero, "whole_s": zero}), flush=True)
"""


@contextmanager
def contestant(program: str, name: str = "test") -> Iterator[Contestant]:
    child = Contestant(name, [sys.executable, "-c", program], {}, core=CORE)
    try:
        yield child
    finally:
        child.end()


def turn(ids: list[list[int]], cpu_s: float, wall_s: float) -> Turn:
    seconds = Seconds(cpu_s, wall_s)
    return Turn(ids, decode_tokens=10, decode_s=seconds, whole_s=seconds)


def test_decoding_is_counted_from_the_last_first_token_to_the_first_last_one() -> None:
    recorder = Recorder([3, 3])
    assert not recorder.step([(0, [7])])
    assert not recorder.step([(0, [8]), (1, [5])])  # from here both decode
    assert not recorder.step([(0, [9]), (1, [6])])  # to here
    assert recorder.step([(1, [4])])
    told = recorder.turn()
    assert told.ids == [[7, 8, 9], [5, 6, 4]]
    assert told.decode_tokens == 2
    assert 0 < told.decode_s.wall <= told.whole_s.wall


def test_streams_that_never_decode_together_have_no_rate() -> None:
    recorder = Recorder([2, 2])
    recorder.step([(0, [1, 2])])
    recorder.step([(1, [1, 2])])
    assert recorder.turn().decode_tokens == 0


class Batches:
    """Answers all of a batch, a token each at a time, as long as its longest wants."""

    joins = False

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def run(self, prompts: list[list[int]], recorder: Recorder) -> None:
        self.sizes.append(len(prompts))
        while not recorder.step([(row, [prompt[0]]) for row, prompt in enumerate(prompts)]):
            pass


def test_who_joins_no_requests_runs_batch_after_batch_and_what_nobody_wants_is_dropped() -> None:
    batches = Batches()
    told = done(batches, Job([[7], [8], [9]], wanted=[1, 3, 2], at_once=2))
    assert batches.sizes == [2, 1]
    assert told.ids == [[7], [8, 8, 8], [9, 9]]


def test_mixed_jobs_have_more_requests_than_places_and_lengths_of_all_kinds() -> None:
    job = mixed(4, 128).job(0)
    assert len(job.prompts) == len(job.wanted) == 12
    assert job.at_once == 4
    assert 16 <= min(job.wanted) < max(job.wanted) <= 128
    assert job != mixed(4, 128).job(1)


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    rounds = Rounds(decode_only=True)
    for ours_s, theirs_s in ((1.0, 2.0), (4.0, 8.0), (9.0, 9.0)):
        rounds.add("ours", turn([[1]], ours_s, 1.0))
        rounds.add("slow", turn([[1]], theirs_s, 1.0))
    assert rounds.ratio("slow") == 2.0
    assert rounds.ratio("slow", "wall") == 1.0
    assert rounds.fastest(["slow", "ours"]) == "ours"


def test_answers_are_compared_one_by_one() -> None:
    rounds = Rounds(decode_only=True)
    rounds.add("ours", turn([[1, 2], [3, 4]], 1.0, 1.0))
    rounds.add("other", turn([[1, 2], [3, 5]], 1.0, 1.0))
    assert rounds.equal_answers("other") == (1, 2)


def test_a_peer_takes_turns_until_it_is_ended() -> None:
    with contestant(HELLO + COUNTS) as child:
        assert child.versions == {"a": "1"}
        assert child.take_turn(Job([[1], [2]], [3, 3], 2)).ids == [[0, 1, 2], [0, 1, 2]]
        assert child.take_turn(Job([[1]], [2], 1)).ids == [[0, 1]]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("raise SystemExit(3)", "ended with status 3"),
        ('print(\'{"error": "ImportError: no such engine"}\')', "no such engine"),
    ],
)
def test_a_peer_that_does_not_start_says_why(program: str, reason: str) -> None:
    with pytest.raises(PeerFailed, match=reason), contestant(program):
        pass


def test_a_peer_that_dies_in_its_turn_is_left_out_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    with contestant(HELLO + COUNTS, "ours") as ours, contestant(HELLO + COUNTS, "bare") as bare:
        with contestant(HELLO + "sys.stdin.readline(); sys.exit(9)", "mortal") as mortal:
            turns = compete({"bare": bare, "ours": ours, "mortal": mortal}, together(1, 2), rounds=2)
        assert set(turns.turns) == {"bare", "ours"}
        assert len(turns.turns["ours"]) == 2
    assert "mortal is left out from here: ended with status 9" in capsys.readouterr().err


def test_the_tables_of_the_page_are_those_of_the_last_run() -> None:
    assert performance.table() in performance.PAGE.read_text(encoding="utf-8"), "python -m perf.performance"
