"""What a request says, bit for bit, whatever runs beside it, however its prompt is cut and wherever parts come from.

Expected is the answer that it gets alone, prompt whole, with no prefix cache. Ids and logarithms of probability are
compared with ==: the last bit of any logit shows in them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from proteus.errors import BrokenModel, InvalidRequest
from proteus.language.engine import Event, OnnxEngine
from proteus.language.generation import FinishReason, Scheduling, TokenLogprobs
from proteus.language.sampling import Sampling
from tests.language import plant
from tests.language.clients import CONTEXT, Client, assert_empty
from tests.language.prompts import VOCABULARY, Prompt, spell

SPOILT = 371  # an id whose embedding is not a number: a prompt with it fails. No greedy answer below has it
NEVER = {SPOILT: -100.0}
MOST_ROUNDS = 100  # of traffic whose moments are left to chance; a few are enough

PROMPTS = (
    spell([1]),
    spell(2),
    spell(3),
    spell(17),
    spell(33),
    spell(65),
    spell(CONTEXT - 40),
    spell("A", 1),
    spell(1, "A", 4),
    spell(1, "A", "A", 5),
    spell(1, "A", "B", "A", 5),
    spell(1, "B", "A", "A", 5),
    spell(12, "C", 20, "A", 3),
    spell(CONTEXT - 30, "B"),
)
SAMPLINGS = (
    Sampling(max_tokens=24, logprobs=True, top_logprobs=5),
    Sampling(max_tokens=24, logprobs=True, top_logprobs=3, temperature=1.3, seed=7, logit_bias=NEVER),
    Sampling(
        max_tokens=24,
        logprobs=True,
        temperature=2.0,
        seed=8,
        top_p=0.9,
        top_k=60,
        min_p=0.01,
        frequency_penalty=0.5,
        repetition_penalty=1.2,
        logit_bias=NEVER,
    ),
    Sampling(max_tokens=9, temperature=0.9, seed=9, logprobs=True, top_logprobs=20, logit_bias={**NEVER, 50: 4.0}),
)


@dataclass(frozen=True)
class Answer:
    ids: list[int]
    logprobs: list[TokenLogprobs]
    text: str
    reason: FinishReason

    @classmethod
    def of(cls, client: Client) -> Answer:
        events = [event for event in client.wait().events if isinstance(event, Event)]
        logprobs = [logprob for event in events for logprob in event.logprobs]
        return cls(client.ids, logprobs, client.text, client.finish.reason)


@dataclass(frozen=True)
class Case:
    prompt: Prompt
    sampling: Sampling
    answer: Answer


@pytest.fixture(scope="module")
def spoilt_folder(llm_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = plant.copy(llm_folder, tmp_path_factory.mktemp("spoilt") / "1")
    plant.edit_embedding(folder, nan_row=SPOILT)
    return folder


@pytest.fixture(scope="module")
def cases(start_engine: Any, llm_folder: Path) -> list[Case]:
    engine = start_engine(llm_folder, slots=1, iteration_tokens=CONTEXT, policy="fifo", prefix_bytes=0)
    made = [
        Case(prompt, sampling, Answer.of(prompt.client(engine, sampling).submit()))
        for prompt in PROMPTS
        for sampling in SAMPLINGS
    ]
    engine.close()
    assert all(SPOILT not in case.answer.ids for case in made)
    assert len({tuple(case.answer.ids) for case in made}) == len(made)
    return made


class Trace:
    """Many requests at once: each case twice, among others that are stopped, fail, or are as they like."""

    def __init__(self, engine: OnnxEngine, cases: list[Case], seed: int) -> None:
        self._engine, self._random = engine, random.Random(seed)
        self._asked: list[tuple[Case, Client]] = []
        self._failing: list[tuple[type[Exception], Client]] = []
        self._others: list[Client] = []
        for case in self._random.sample([*cases, *cases], 2 * len(cases)):
            self._add_neighbour()
            self._add(case)

    def check(self) -> None:
        for case, client in self._asked:
            answer = Answer.of(client)
            if answer.reason == "cancelled":
                number = len(answer.ids)
                assert answer.ids == case.answer.ids[:number]
                assert answer.logprobs == case.answer.logprobs[:number]
            else:
                assert answer == case.answer
        for error, client in self._failing:
            assert isinstance(client.wait().failure.error, error)
        for client in self._others:
            client.wait()
        assert_empty(self._engine)

    def _add(self, case: Case) -> None:
        client = case.prompt.client(
            self._engine, case.sampling, names=self._random.random() < 0.5, scheduling=self._scheduling()
        )
        if self._random.random() < 0.25:
            at = self._random.randint(0, len(case.answer.ids))
            client.on_event = lambda event: client.cancel() if len(client.events) >= at else None
        self._asked.append((case, client.submit()))
        if self._random.random() < 0.05:
            client.cancel()
        if self._random.random() < 0.1:
            client.wait()  # so that the engine runs empty at times

    def _add_neighbour(self) -> None:
        kind = self._random.choice(("spoilt", "impossible", "free", "free", "none", "none"))
        head = self._random.choice((1, 9, 40))
        if kind == "spoilt":
            prompt = spell(head, [SPOILT], self._random.choice((0, 1, 30)))
            self._failing.append((BrokenModel, prompt.client(self._engine, Sampling(max_tokens=5)).submit()))
        elif kind == "impossible":
            sampling = Sampling(max_tokens=5, min_tokens=2, stop_token_ids=tuple(range(VOCABULARY)))
            self._failing.append((InvalidRequest, spell(head).client(self._engine, sampling).submit()))
        elif kind == "free":
            sampling = Sampling(max_tokens=self._random.randint(1, 40), temperature=1.0, logit_bias=NEVER)
            prompt = spell(head, self._random.choice("ABCD"))
            self._others.append(prompt.client(self._engine, sampling, scheduling=self._scheduling()).submit())

    def _scheduling(self) -> Scheduling:
        chance = self._random
        return Scheduling(
            cache_scope=chance.choice("ab"),
            tenant=chance.choice("xyz"),
            latency_class=chance.choice(("text", "media", "batch")),
        )


@pytest.mark.parametrize(
    ("slots", "iteration_tokens", "policy", "prefix_bytes"),
    [
        (1, 10, "ratio", 1 << 20),
        (2, 3, "priority", 0),
        (3, 4, "auto", 1 << 20),
        (3, 24, "auto", 1 << 16),
        (5, 17, "pools", 1 << 20),
        (8, 33, "ratio", 0),
        (8, 200, "priority", 1 << 17),
        (4, 64, "fifo", 1 << 20),
        (16, 50, "auto", 1 << 18),
    ],
)
def test_an_answer_has_the_same_bits_in_any_traffic(
    start_engine: Any,
    spoilt_folder: Path,
    cases: list[Case],
    slots: int,
    iteration_tokens: int,
    policy: str,
    prefix_bytes: int,
) -> None:
    engine = start_engine(
        spoilt_folder,
        slots=slots,
        iteration_tokens=iteration_tokens,
        policy=policy,
        prefix_bytes=prefix_bytes,
        max_queue=1000,
        media_aging_ms=5,
        batch_aging_ms=20,
    )
    for seed in range(2):
        Trace(engine, cases, seed).check()
    cached = engine.figures().counts.cached_tokens
    assert (cached > 1000) == (prefix_bytes > 0)
    engine.close()


def test_chunks_of_a_picture_that_gave_way_to_text_are_computed_anew_with_the_same_bits(
    start_engine: Any, llm_folder: Path
) -> None:
    """Text comes one after the other while long prompts of pictures prefill, until some of their chunks were ended."""
    sampling = SAMPLINGS[0]
    media = [spell(head, *"ABCDEFGHIJKLMNOP", 100 + head) for head in range(1, 13)]
    text = [spell(length) for length in (1, 2, 5, 9)]
    alone = start_engine(llm_folder, slots=1, context_tokens=512, iteration_tokens=512, policy="fifo", prefix_bytes=0)
    expected = {prompt: Answer.of(prompt.client(alone, sampling).submit()) for prompt in (*media, *text)}
    alone.close()
    engine = start_engine(
        llm_folder, slots=6, context_tokens=512, iteration_tokens=200, policy="ratio", max_media_slots=4
    )
    for _ in range(MOST_ROUNDS):
        asked = [(prompt, prompt.client(engine, sampling).submit()) for prompt in media]
        while not all(client.ended.is_set() for _, client in asked[: len(media)]):
            prompt = text[len(asked) % len(text)]
            asked.append((prompt, prompt.client(engine, sampling).submit().wait()))
        for prompt, client in asked:
            assert Answer.of(client) == expected[prompt]
        if engine.figures().counts.given_up_tokens > 500:
            break
    counts = engine.figures().counts
    assert counts.given_up_tokens > 500
    assert counts.wasted_prefill_tokens == 0
    assert_empty(engine)
    engine.close()


@pytest.mark.parametrize("is_picture", [False, True])
def test_every_length_of_a_prompt_and_of_what_the_cache_gives_of_it_has_the_same_bits(
    start_engine: Any, llm_folder: Path, is_picture: bool
) -> None:
    """A prompt of each length: computed whole, in chunks, and with as much from the cache as any other left there."""
    sampling = Sampling(max_tokens=2, logprobs=True, top_logprobs=5)
    lengths = range(CONTEXT - 12)
    prompts = [spell(length, "A", 1) if is_picture else spell(length + 1) for length in lengths]
    forks = [spell(length, [77, 78, 79]) for length in lengths]  # as others, up to any place
    alone = start_engine(llm_folder, slots=1, iteration_tokens=CONTEXT, policy="fifo", prefix_bytes=0)
    expected = [Answer.of(prompt.client(alone, sampling).submit()) for prompt in (*prompts, *forks)]
    alone.close()
    engine = start_engine(llm_folder, iteration_tokens=21)
    order = random.Random(is_picture).sample(range(len(expected)), len(expected))
    for number in (*order, *order):
        prompt = (*prompts, *forks)[number]
        assert Answer.of(prompt.client(engine, sampling).submit()) == expected[number]
    counts = engine.figures().counts
    assert counts.cached_tokens > counts.prefilled_tokens > 0
    engine.close()
