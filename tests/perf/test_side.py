"""perf.side: everybody is asked the same, what is compared, and who fails is left out and says why."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from perf.peers.environments import PeerFailed
from perf.side import endless, page
from perf.side.__main__ import take_turns
from perf.side.asks import TOKENS, Ask, behind, end_to_end, reuse
from perf.side.bare import Rate
from perf.side.encoder import SIZES, EncoderRounds
from perf.side.load import drive
from perf.side.report import Reporter, encoder_record, equality
from perf.side.turns import OURS, Answered, Contestant, Rounds, Turn

END = 6
Named = dict[str, Contestant]


def answered(*ids: int, text: str = "red", ttft_s: float = 0.5) -> Answered:
    return Answered(num_tokens=len(ids), ttft_s=ttft_s, text=text, ids=ids or None)


class Fake:
    """Answers each turn in a time of its own, or fails in one of them."""

    versions = {"package": "1"}
    pid = os.getpid()

    def __init__(self, name: str, walls_s: Sequence[float], fails_at: int | None = None) -> None:
        self.name, self._walls_s, self._fails_at = name, walls_s, fails_at
        self.turns: list[list[Ask]] = []
        self.ended = False

    def take_turn(self, asks: Sequence[Ask], clients: int) -> Turn:
        number = len(self.turns)
        self.turns.append(list(asks))
        if number == self._fails_at:
            raise PeerFailed("ended with status 9")
        answers = [answered(1, END, 3) for _ in asks]
        return Turn(answers=answers, wall_s=self._walls_s[number % len(self._walls_s)])

    def end(self) -> None:
        self.ended = True


def digests(asks: Sequence[Ask]) -> list[str]:
    return [hashlib.sha256(ask.picture).hexdigest() for ask in asks]


def test_no_picture_is_shown_twice_where_nothing_is_repeated() -> None:
    task = end_to_end(2, 6, number=0)
    shown = [digest for turn in range(3) for digest in digests(task.asks(turn))]
    assert len(set(shown)) == 18


def test_the_same_turn_asks_the_same_again() -> None:
    task = end_to_end(2, 3, number=1)
    assert task.asks(1) == task.asks(1)


@pytest.mark.parametrize(("percent", "distinct"), [(0, 20), (50, 10), (80, 4)])
def test_so_many_of_a_hundred_show_a_picture_that_was_shown_before(percent: int, distinct: int) -> None:
    task = reuse(percent, 4, 20, number=0)
    assert len(set(digests(task.asks(0)))) == distinct
    assert not set(digests(task.asks(0))) & set(digests(task.asks(1)))


def test_what_is_shown_again_was_answered_before_where_that_can_be() -> None:
    assert behind([1, 2, 3, 4, 5], clients=2) == [1, 2, 3]
    assert behind([1, 2], clients=4) == [1]


def test_clients_ask_again_when_they_are_answered_and_answers_keep_their_order() -> None:
    at_once, most = 0, 0

    async def answer(ask: Ask) -> Answered:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.001 * (int(ask.question) % 3))
        at_once -= 1
        return answered(*range(TOKENS), text=ask.question)

    turn = asyncio.run(drive(answer, [Ask(b"", str(number)) for number in range(10)], clients=3))
    assert [one.text for one in turn.answers] == [str(number) for number in range(10)]
    assert most == 3


def test_an_answer_of_another_length_puts_its_giver_out() -> None:
    async def answer(ask: Ask) -> Answered:
        return answered(1, 2)

    with pytest.raises(PeerFailed, match=f"answered with 2 to 2 tokens, wanted {TOKENS}"):
        asyncio.run(drive(answer, [Ask(b"", "")], clients=1))


def test_what_a_client_meets_is_told() -> None:
    async def answer(ask: Ask) -> Answered:
        raise ConnectionResetError("gone")

    with pytest.raises(PeerFailed, match="ConnectionResetError: gone"):
        asyncio.run(drive(answer, [Ask(b"", "")], clients=1))


def test_who_fails_is_out_of_the_whole_run_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    ours, fast, mortal = Fake(OURS, [1.0]), Fake("fast", [0.5]), Fake("mortal", [1.0], fails_at=3)
    tasks = [end_to_end(1, 2, number=0), end_to_end(8, 3, number=1)]
    done = take_turns({one.name: one for one in (ours, fast, mortal)}, tasks, rounds=2)
    assert "mortal is left out from here: ended with status 9" in capsys.readouterr().err
    assert mortal.ended
    assert ours.turns == fast.turns
    for rounds in done.values():
        assert rounds.peers() == ["fast"]
        assert len(rounds.turns[OURS]) == 2


def test_a_failure_of_ours_ends_the_run() -> None:
    with pytest.raises(PeerFailed):
        take_turns({OURS: Fake(OURS, [1.0], fails_at=0)}, [end_to_end(1, 1, number=0)], rounds=1)


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (answered(1, END, 2), answered(1, END, 2), "1 of 1 answers equal to ours token by token, 1 up to their end"),
        (answered(1, END, 2), answered(1, END, 3), "0 of 1 answers equal to ours token by token, 1 up to their end"),
        (answered(1, 2, 3), answered(1, 2, 4), "0 of 1 answers equal to ours token by token, 0 up to their end"),
        (answered(1, text="red "), answered(text="red"), "1 of 1 texts equal to ours"),
        (answered(1, text="red"), answered(text="blue"), "0 of 1 texts equal to ours"),
    ],
)
def test_answers_are_compared_by_tokens_or_where_none_are_told_by_text(
    ours: Answered, theirs: Answered, said: str
) -> None:
    assert equality([(theirs, ours)], END) == said


def test_records_are_named_as_the_issue_names_them_and_the_page_reads_them() -> None:
    contestants: Named = {name: Fake(name, walls_s) for name, walls_s in ((OURS, [1.0, 2.0]), ("vllm", [4.0, 4.0]))}
    tasks = [end_to_end(8, 4, number=0), reuse(0, 2, 4, number=0), reuse(50, 2, 4, number=1)]
    rounds = [Rounds(task) for task in tasks]
    for one in rounds:
        for name, contestant in contestants.items():
            for turn in range(2):
                one.add(name, contestant.take_turn(one.task.asks(turn), one.task.clients))
    reporter = Reporter(contestants, {"vllm": "a note"}, END, "command")
    (whole,) = reporter.end_to_end(rounds[0])
    again = reporter.reuse(rounds[2], rounds[1])
    assert (whole.name, whole.value, whole.baseline, whole.ratio) == ("e2e/vllm/8", 3.0, 1.0, 3.0)
    assert whole.note.endswith("a note")
    assert whole.versions["vllm: package"] == "1"
    assert (again.name, again.baseline) == ("reuse/50", 1.0)
    text = page.written(blank_page(), [vars_of(whole), vars_of(again)])
    assert "| `e2e/vllm/8` | 3.0 | 1.0 | **3.00** | 9 / 3 | 500.0 / 500.0 ms | 0.0 / 0.0 ms |" in text
    assert "ours 1.00, vllm 1.00" in text


def test_the_encoder_path_is_compared_round_by_round() -> None:
    rates = [Rate(per_s=per_s, cpu_ms=10.0) for per_s in (90.0, 50.0, 80.0)]
    bare = [Rate(per_s=100.0, cpu_ms=8.0), Rate(per_s=100.0, cpu_ms=8.0), Rate(per_s=80.0, cpu_ms=8.0)]
    record = encoder_record(SIZES[0], EncoderRounds(ours=rates, bare=bare, graphs=bare), "command")
    assert (record.name, record.value, record.baseline, record.ratio) == ("encoder_path", 80.0, 100.0, 0.9)
    assert "10.00 ms / 8.00 ms" in page.written(blank_page(), [vars_of(record)])


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="0 tables with the columns record, through Triton"):
        page.written("# Nothing\n", [])


def test_the_tables_of_the_page_are_those_of_the_last_run() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.written(text, page.results()) == text, "python -m perf.side.page"


def test_nothing_ends_an_answer_of_the_endless_demo(tmp_path: Path) -> None:
    made = endless.deployment(tmp_path)
    exported = json.loads((made.repository_path / "llm" / "1" / "export.json").read_text())
    assert exported["eos_token_ids"] == []
    assert made.llm.slots == endless.SLOTS
    assert not made.draws
    assert (made.repository_path / "chat" / "1" / "model.py").exists()


def test_the_endless_checkpoint_differs_in_its_end_tokens_alone(tmp_path: Path) -> None:
    source = Path(endless.DEMO).parents[1] / "checkpoints" / "demo"
    made = endless.checkpoint(source, tmp_path / "endless")
    generation = json.loads((made / "generation_config.json").read_text())
    assert "eos_token_id" not in generation
    assert json.loads((made / "config.json").read_text())["text_config"]["eos_token_id"] is None
    assert {file.name for file in made.iterdir()} == {file.name for file in source.iterdir()}


def blank_page() -> str:
    return "\n\n".join(page.head(columns) for columns in (page.ENCODER, page.WHOLE, page.REUSE)) + "\n"


def vars_of(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in ("name", "value", "baseline", "ratio", "note")}
