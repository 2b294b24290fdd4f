"""Every field of sampling on its way through the engine; expected is what the engine's own logits say."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from proteus.errors import InvalidRequest
from proteus.language.engine import Event, OnnxEngine
from proteus.language.generation import TokenLogprobs
from proteus.language.sampling import Sampling
from proteus.language.stream import Detokenizer
from proteus.language.tokenizer import load_tokenizer
from tests.language.clients import CONTEXT, LONG, OTHERS, PROMPT, Client, ask
from tests.language.prompts import VOCABULARY, spell

EVERYTHING = VOCABULARY  # top_logprobs beyond what the door lets through: to see the whole distribution


def logprobs_of(client: Client) -> list[TokenLogprobs]:
    return [row for event in client.events if isinstance(event, Event) for row in event.logprobs]


def test_min_tokens_keep_an_answer_from_ending(engine: OnnxEngine, whole: Client) -> None:
    stop = whole.ids[3]
    for min_tokens in (0, 3, 4, 20):
        answer = ask(engine, PROMPT, max_tokens=LONG, min_tokens=min_tokens, stop_token_ids=(stop,))
        assert stop not in answer.ids[:min_tokens]
        assert len(answer.ids) > min_tokens or answer.finish.reason == "length"
    assert answer.ids[:3] == whole.ids[:3]
    assert len(answer.ids) > 20


def test_min_tokens_that_leave_no_token_are_told_to_their_client_alone(engine: OnnxEngine, whole: Client) -> None:
    neighbour = Client(engine, PROMPT, Sampling(max_tokens=LONG)).submit()
    answer = ask(engine, OTHERS[0], max_tokens=5, min_tokens=3, stop_token_ids=tuple(range(VOCABULARY)))
    assert isinstance(answer.failure.error, InvalidRequest)
    assert "min_tokens" in str(answer.failure.error)
    assert answer.ids == []
    assert neighbour.wait().ids == whole.ids


def test_min_tokens_beyond_the_context_end_with_it(engine: OnnxEngine) -> None:
    answer = ask(engine, spell(CONTEXT - 5).ids, max_tokens=LONG, min_tokens=LONG)
    assert (len(answer.ids), answer.finish.reason) == (5, "length")


@pytest.mark.parametrize("field", ["stop_token_ids", "logit_bias"])
@pytest.mark.parametrize("number", [VOCABULARY, -1, 1 << 40])
def test_ids_outside_the_vocabulary_are_refused_before_anything_is_held(
    engine: OnnxEngine, field: str, number: int
) -> None:
    value: Any = {number: 1.0} if field == "logit_bias" else (number,)
    with pytest.raises(InvalidRequest, match=rf"sampling\.{field} names the id {number}; limit: 0 to 386"):
        ask(engine, PROMPT, **{field: value})


def test_a_bias_forces_or_bans_an_id_at_every_token(engine: OnnxEngine, whole: Client) -> None:
    assert ask(engine, PROMPT, max_tokens=9, logit_bias={77: 100.0}).ids == [77] * 9
    banned = dict.fromkeys(whole.ids, -100.0)
    assert not set(whole.ids) & set(ask(engine, PROMPT, max_tokens=LONG, logit_bias=banned).ids)


def test_penalties_spread_an_answer_that_a_bias_would_repeat(engine: OnnxEngine) -> None:
    bias = dict.fromkeys(range(100, 110), 30.0)
    repeated = Counter(ask(engine, PROMPT, max_tokens=30, logit_bias=bias).ids)
    spread = Counter(ask(engine, PROMPT, max_tokens=30, logit_bias=bias, frequency_penalty=2.0).ids)
    assert max(spread.values()) < max(repeated.values())
    assert set(spread) == set(bias)
    once = ask(engine, PROMPT, max_tokens=40, repetition_penalty=1e6)
    assert len(set(once.ids)) == len(once.ids)
    assert not set(once.ids) & set(PROMPT)


def test_logprobs_are_one_distribution_over_the_whole_vocabulary_at_every_token(
    engine: OnnxEngine, whole: Client
) -> None:
    answer = ask(engine, PROMPT, max_tokens=LONG, logprobs=True, top_logprobs=EVERYTHING)
    rows = logprobs_of(answer)
    assert answer.ids == whole.ids == [row.token_id for row in rows]
    for row in rows:
        values = [value for _, value in row.top]
        assert sorted(number for number, _ in row.top) == list(range(VOCABULARY))
        assert math.fsum(map(math.exp, values)) == pytest.approx(1, abs=1e-6)
        assert values == sorted(values, reverse=True)
        assert row.top[0] == (row.token_id, row.logprob)


def test_logprobs_are_the_models_whatever_sampling_makes_of_them(engine: OnnxEngine) -> None:
    plain = logprobs_of(ask(engine, PROMPT, max_tokens=1, logprobs=True, top_logprobs=EVERYTHING))[0]
    bent = ask(
        engine,
        PROMPT,
        max_tokens=1,
        logprobs=True,
        top_logprobs=EVERYTHING,
        temperature=5.0,
        seed=2,
        top_k=9,
        logit_bias={50: 9.0},
        repetition_penalty=2.0,
    )
    (row,) = logprobs_of(bent)
    assert row.top == plain.top
    assert row.logprob == dict(plain.top)[row.token_id]


def test_the_token_that_ends_an_answer_has_its_logprob_too(engine: OnnxEngine, whole: Client) -> None:
    answer = ask(engine, PROMPT, max_tokens=LONG, logprobs=True, stop_token_ids=(whole.ids[9],))
    assert [row.token_id for row in logprobs_of(answer)] == answer.ids
    assert answer.finish.reason == "stop"


def test_choices_of_a_seed_differ_and_come_again(engine: OnnxEngine) -> None:
    sampling = Sampling(max_tokens=12, temperature=1.5, seed=11)

    def choices() -> list[list[int]]:
        clients = [Client(engine, PROMPT, sampling.for_choice(index)).submit() for index in range(4)]
        return [client.wait().ids for client in clients]

    first = choices()
    assert len({tuple(ids) for ids in first}) == 4
    assert first == choices()
    assert first[0] == Client(engine, PROMPT, sampling).submit().wait().ids


@pytest.mark.parametrize("character", ["é", "图", "\N{GRINNING FACE}"])
def test_a_stop_string_of_a_character_of_several_bytes_cuts_before_it(
    engine: OnnxEngine, tiny_checkpoint: Path, character: str
) -> None:
    """The model is made to babble in the bytes of the character and a letter, until that is what it says."""
    detokenizer = Detokenizer(load_tokenizer(tiny_checkpoint))
    wanted = {bytes([byte]) for byte in (character + "a").encode()}
    bias = {number: 60.0 for number in range(VOCABULARY) if detokenizer.token_bytes(number) in wanted}
    assert len(bias) == len(wanted)

    def babble(seed: int, **more: Any) -> Client:
        return ask(engine, PROMPT, max_tokens=100, temperature=8.0, seed=seed, logit_bias=bias, **more)

    seed, whole = next((seed, said) for seed in range(100) if character in (said := babble(seed)).text[1:])
    at = whole.text.index(character)
    for stop in (character, whole.text[at - 1] + character):
        answer = babble(seed, stop=(stop, "never said"))
        assert (answer.text, answer.finish.reason) == (whole.text[: whole.text.index(stop)], "stop")
        assert answer.ids == whole.ids[: len(answer.ids)]
    held_back = babble(seed, stop=(whole.text[at:] + "!",))
    assert (held_back.text, held_back.finish.reason) == (whole.text, "length")
