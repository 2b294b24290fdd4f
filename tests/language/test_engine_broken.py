"""Models that say nothing any more: the request that meets it ends with an error, and its neighbours as if alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proteus.errors import BrokenModel
from proteus.language.engine import Event, OnnxEngine
from proteus.language.health import CONSTANT_EVERY, STUCK_AFTER
from proteus.language.sampling import Sampling
from tests.language import plant
from tests.language.clients import LONG, OTHERS, PROMPT, Client, ask, assert_empty
from tests.language.prompts import VOCABULARY, spell

# Ids that no answer here has, and what the model says after them.
CONSTANT, STUCK, NAN, INFINITE, ONE_NAN = 371, 372, 374, 376, 377


def planted() -> dict[int, np.ndarray[Any, np.dtype[np.float32]]]:
    logits = {number: np.zeros(VOCABULARY, dtype=np.float32) for number in (CONSTANT, STUCK, NAN, INFINITE, ONE_NAN)}
    logits[CONSTANT] += 3.5
    logits[STUCK][STUCK] = 9.0  # and so on for ever
    logits[NAN] *= np.nan
    logits[INFINITE][5] = np.inf
    logits[ONE_NAN][[5, 6]] = 1e30, np.nan
    return logits


@pytest.fixture(scope="module")
def broken(start_engine: Any, llm_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnnxEngine]:
    folder = plant.copy(llm_folder, tmp_path_factory.mktemp("broken") / "1")
    plant.edit_logits(folder, planted())
    engine = start_engine(folder, slots=6)
    yield engine
    assert_empty(engine)
    engine.close()


SAMPLINGS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0, "seed": 1},
    {"logprobs": True, "top_logprobs": 5},
    {"temperature": 2.0, "top_p": 0.9, "min_p": 0.1, "top_k": 5, "repetition_penalty": 1.1},
)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "drawn", "logprobs", "fields"])
@pytest.mark.parametrize("number", [CONSTANT, NAN, INFINITE, ONE_NAN])
def test_logits_without_meaning_end_their_request_before_a_token_of_them(
    broken: OnnxEngine, whole: Client, number: int, sampling: dict[str, Any]
) -> None:
    neighbours = [Client(broken, PROMPT, Sampling(max_tokens=LONG)).submit() for _ in range(2)]
    answer = ask(broken, spell(20, [number]).ids, max_tokens=LONG, **sampling)
    assert (str(answer.failure.error), answer.ids) == (str(BrokenModel()), [])
    assert [neighbour.wait().ids for neighbour in neighbours] == [whole.ids] * 2


def test_a_model_that_breaks_in_the_middle_of_an_answer_ends_it_there(broken: OnnxEngine, whole: Client) -> None:
    """The bias makes the first token one after which nothing is a number, or all is the same."""
    sampling = Sampling(max_tokens=LONG, logit_bias={NAN: 100.0})
    answer = Client(broken, PROMPT, sampling).submit().wait()
    assert (answer.ids, str(answer.failure.error)) == ([NAN], str(BrokenModel()))
    constant = ask(broken, PROMPT, max_tokens=LONG, logit_bias={CONSTANT: 100.0})
    assert set(constant.ids) == {CONSTANT}
    assert len(constant.ids) <= CONSTANT_EVERY
    assert isinstance(constant.failure.error, BrokenModel)


def test_a_model_that_is_stuck_ends_its_request_and_no_other(broken: OnnxEngine, whole: Client) -> None:
    neighbours = [Client(broken, ids, Sampling(max_tokens=LONG)).submit() for ids in (PROMPT, OTHERS[0])]
    stuck = ask(broken, [1, STUCK], max_tokens=LONG)
    assert (stuck.ids, str(stuck.failure.error)) == ([STUCK] * (STUCK_AFTER - 1), str(BrokenModel()))
    assert neighbours[0].wait().ids == whole.ids
    assert neighbours[1].wait().finish.reason == "length"


def test_what_a_broken_model_computed_counts_as_wasted(broken: OnnxEngine) -> None:
    before = broken.figures().counts
    stuck = ask(broken, [1, STUCK], max_tokens=LONG)
    after = broken.figures().counts
    assert after.wasted_prefill_tokens - before.wasted_prefill_tokens == 2
    assert after.wasted_decode_tokens - before.wasted_decode_tokens == len(stuck.ids) == STUCK_AFTER - 1
    assert after.outcomes[BrokenModel.code] == before.outcomes[BrokenModel.code] + 1


def test_every_request_of_a_broken_model_fails_and_the_engine_takes_the_next(broken: OnnxEngine, whole: Client) -> None:
    numbers = (CONSTANT, NAN, INFINITE, ONE_NAN, STUCK) * 8
    clients = [Client(broken, [1, 9, number], Sampling(max_tokens=LONG)).submit() for number in numbers]
    assert all(isinstance(client.wait().failure.error, BrokenModel) for client in clients)
    assert all(isinstance(event, Event) for client in clients for event in client.events[:-1])
    assert ask(broken, PROMPT, max_tokens=LONG).ids == whole.ids
