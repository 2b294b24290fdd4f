"""What every engine of the language model does, whatever runs the model: one table of behaviours for all of them.

`test_engine_contract.py` has the engines that run here, `tests/gpu/test_tensorrt_llm.py` the one that needs a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from proteus.errors import DeadlineExceeded, InvalidRequest, PromptTooLong, QueueFull, Unavailable
from proteus.language.engines import RunningEngine
from proteus.language.figures import ENGINE_FIGURES
from proteus.language.generation import Event, Failure, Scheduling
from proteus.language.sampling import Sampling
from tests.language.clients import CONTEXT, LONG, OTHERS, PATIENCE_S, PROMPT, SLOTS, Client, Gate
from tests.language.prompts import VISUAL_TOKENS, Prompt, spell

TEXT, ONE, TWO = spell(40), spell(20, "A", 30), spell(5, "A", 5, "B", 9)
LONG_TEXT = spell(100)  # of some blocks, whatever the engine's are


@dataclass(frozen=True, kw_only=True)
class Contender:
    """An engine on the tiny checkpoint, whose answers end by length alone."""

    start: Callable[..., RunningEngine]
    reference: Any  # a LlavaForConditionalGeneration of transformers
    tokenizer: Any
    width: int
    is_exact: bool  # computes in 32 bits

    def prompt(self, prompt: Prompt) -> Prompt:
        """The same with rows of this width."""
        if prompt.rows is None or prompt.rows.shape[1] == self.width:
            return prompt
        letters = [key[:1] for key in prompt.keys]
        rows = [np.random.default_rng(letter[0]).standard_normal((VISUAL_TOKENS, self.width)) for letter in letters]
        return replace(prompt, rows=np.concatenate(rows).astype(np.float32))

    def logits_after(self, prompt: Prompt, answer: list[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Of transformers, (V,)."""
        import torch

        with torch.no_grad():
            ids = torch.tensor([*prompt.ids, *answer])
            embeds = self.reference.get_input_embeddings()(ids).clone()
            row = 0
            for start, length in prompt.spans:
                embeds[start : start + length] = torch.from_numpy(prompt.rows[row : row + length]).to(embeds.dtype)
                row += length
            language = self.reference.model.language_model(inputs_embeds=embeds[None])
            logits = self.reference.lm_head(language.last_hidden_state[0, -1])
        return logits.double().numpy()


class EngineContract:
    """A subclass gives the fixture `contender`."""

    @pytest.fixture(scope="class")
    @classmethod
    def shared(cls, contender: Contender) -> Iterator[RunningEngine]:
        engine = contender.start()
        yield engine
        engine.close()

    @pytest.fixture
    def engine(self, shared: RunningEngine) -> Iterator[RunningEngine]:
        yield shared
        assert_idle(shared)

    @pytest.fixture
    def narrow(self, contender: Contender) -> Iterator[RunningEngine]:
        """One slot, and one place to wait."""
        engine = contender.start(slots=1, max_queue=1)
        yield engine
        assert_idle(engine)
        engine.close()

    @pytest.mark.parametrize("spelt", [TEXT, ONE, TWO], ids=["text", "one picture", "two pictures"])
    def test_greedy_tokens_are_those_of_transformers(
        self, engine: RunningEngine, contender: Contender, spelt: Prompt
    ) -> None:
        prompt = contender.prompt(spelt)
        answer = asked(engine, prompt, Sampling(max_tokens=6)).ids
        for place, token_id in enumerate(answer):
            logits = contender.logits_after(prompt, answer[:place])
            allowance = 0.0 if contender.is_exact else 0.05 * float(logits.max() - logits.min())
            assert logits[token_id] >= logits.max() - allowance

    def test_pieces_are_the_text_of_the_tokens(self, engine: RunningEngine, contender: Contender) -> None:
        client = asked(engine, TEXT, Sampling(max_tokens=LONG))
        assert len(client.ids) == LONG == len(client.events)
        assert client.text == contender.tokenizer.decode(client.ids, skip_special_tokens=True)
        assert client.finish.reason == "length"

    def test_text_ends_before_a_stop_string(self, engine: RunningEngine) -> None:
        whole = asked(engine, TEXT, Sampling(max_tokens=LONG)).text
        stop = whole[10:13]
        client = asked(engine, TEXT, Sampling(max_tokens=LONG, stop=("never said", stop)))
        assert client.text == whole[: whole.index(stop)]
        assert client.finish.reason == "stop"

    def test_a_stop_token_is_told_and_has_no_text(self, engine: RunningEngine) -> None:
        whole = asked(engine, TEXT, Sampling(max_tokens=12))
        stop = next(number for number in whole.ids[3:] if number not in whole.ids[:3])
        client = asked(engine, TEXT, Sampling(max_tokens=12, stop_token_ids=(stop,)))
        assert client.ids == whole.ids[: whole.ids.index(stop) + 1]
        assert client.finish.reason == "stop"
        assert whole.text.startswith(client.text)

    def test_an_answer_ends_with_the_context(self, engine: RunningEngine) -> None:
        client = asked(engine, spell(CONTEXT - 5), Sampling(max_tokens=50))
        assert (len(client.ids), client.finish.reason) == (5, "length")

    def test_a_cancel_ends_an_answer_and_frees_its_slot(self, narrow: RunningEngine) -> None:
        client = Client(narrow, PROMPT, Sampling(max_tokens=100))
        seen = []
        client.on_event = lambda event: (seen.append(event), len(seen) == 3 and client.cancel())
        assert client.submit().wait().finish.reason == "cancelled"
        assert len(client.ids) < 100
        assert asked(narrow, TEXT, Sampling(max_tokens=2)).finish.reason == "length"

    def test_a_cancel_may_come_before_its_request(self, engine: RunningEngine) -> None:
        client = Client(engine, PROMPT, Sampling(max_tokens=LONG))
        client.cancel()
        assert client.submit().wait().finish.reason == "cancelled"

    def test_a_request_too_many_is_refused(self, narrow: RunningEngine) -> None:
        gate = Gate()
        running = Client(narrow, PROMPT, Sampling(max_tokens=3), on_event=gate).submit()
        assert gate.reached.wait(PATIENCE_S)
        waiting = Client(narrow, OTHERS[0], Sampling(max_tokens=3)).submit()
        with pytest.raises(QueueFull, match=r"\[llm\] slots \+ max_queue = 2"):
            Client(narrow, OTHERS[1], Sampling(max_tokens=3)).submit()
        waiting.cancel()
        gate.opened.set()
        assert (running.wait().finish.reason, waiting.wait().finish.reason) == ("length", "cancelled")

    def test_who_waits_too_long_for_a_slot_is_told(self, narrow: RunningEngine) -> None:
        gate = Gate()
        running = Client(narrow, PROMPT, Sampling(max_tokens=3), on_event=gate).submit()
        assert gate.reached.wait(PATIENCE_S)
        late = Client(narrow, PROMPT, scheduling=Scheduling(deadline_s=time.monotonic() + 0.05)).submit()
        time.sleep(0.1)
        gate.opened.set()
        late.wait()
        assert isinstance(late.events[-1], Failure | Event)
        if isinstance(late.events[-1], Failure):  # unless the slot was free within a few milliseconds
            assert isinstance(late.failure.error, DeadlineExceeded)
        running.wait()

    @pytest.mark.parametrize(
        ("spelt", "sampling", "error"),
        [
            (spell(CONTEXT), {}, PromptTooLong),
            (spell([100_000]), {}, InvalidRequest),
            (replace(ONE, rows=None), {}, InvalidRequest),
            (replace(ONE, spans=()), {}, InvalidRequest),
            (replace(ONE, keys=(b"one", b"two")), {}, InvalidRequest),
            (TEXT, {"logit_bias": {100_000: 1.0}}, InvalidRequest),
        ],
        ids=["too long", "no such id", "no rows", "no spans", "a key too many", "no such id to bias"],
    )
    def test_what_cannot_be_used_is_refused_at_once(
        self, engine: RunningEngine, contender: Contender, spelt: Prompt, sampling: dict[str, Any], error: type
    ) -> None:
        prompt = spelt if spelt.rows is None else contender.prompt(spelt)
        with pytest.raises(error):
            prompt.client(engine, Sampling(**sampling), names=True).submit()

    def test_a_prefix_is_reused_within_a_scope_and_never_in_another(self, engine: RunningEngine) -> None:
        first, again, other = (asked(engine, LONG_TEXT, scope=scope) for scope in ("x", "x", "y"))
        assert [client.finish.cached_tokens > 0 for client in (first, again, other)] == [False, True, False]
        assert first.ids == again.ids == other.ids

    @pytest.mark.parametrize("names", [False, True], ids=["without keys", "with keys"])
    def test_pictures_under_equal_placeholders_never_share(
        self, engine: RunningEngine, contender: Contender, names: bool
    ) -> None:
        spelt = [contender.prompt(spell(40, letter, 40)) for letter in ("A", "B", "A")]
        scope = f"pictures {names}"
        mixed = [asked(engine, prompt, scope=scope, names=names) for prompt in spelt]
        alone = [asked(engine, prompt, scope=f"{scope} {number}") for number, prompt in enumerate(spelt)]
        assert [client.ids for client in mixed] == [client.ids for client in alone]
        assert mixed[0].ids != mixed[1].ids
        assert mixed[1].finish.cached_tokens <= 40  # the text in front at most
        assert mixed[2].finish.cached_tokens > 40 + VISUAL_TOKENS

    def test_a_seed_repeats_an_answer(self, engine: RunningEngine) -> None:
        ask = partial(asked, engine, TEXT)
        first, again, other = (ask(Sampling(max_tokens=20, temperature=1.5, seed=seed)).ids for seed in (3, 3, 4))
        assert first == again != other

    def test_sampling_fields_have_their_effect(self, engine: RunningEngine) -> None:
        greedy = asked(engine, TEXT, Sampling(max_tokens=8)).ids
        one = asked(engine, TEXT, Sampling(max_tokens=8, temperature=2.0, top_k=1)).ids
        nucleus = asked(engine, TEXT, Sampling(max_tokens=8, temperature=1.0, top_p=1e-6, min_p=1.0)).ids
        forced = asked(engine, TEXT, Sampling(max_tokens=3, logit_bias={77: 100.0})).ids
        varied = asked(engine, TEXT, Sampling(max_tokens=6, logit_bias={77: 100.0, 78: 99.5}, presence_penalty=2.0)).ids
        assert greedy == one == nucleus
        assert forced == [77, 77, 77]
        assert varied[:2] == [77, 78]

    @pytest.mark.parametrize(
        "fields",
        [
            {"temperature": 1e300, "top_k": 1},
            {"temperature": 1.0, "top_p": 1e-300},
            {"temperature": 1e-300, "top_k": 10**15},
            {"temperature": 1.0, "min_p": 1.0, "top_k": 10**15},
            {"min_tokens": 30, "max_tokens": 40},
        ],
        ids=lambda fields: " ".join(fields),
    )
    def test_extremes_are_answered(self, engine: RunningEngine, fields: dict[str, Any]) -> None:
        greedy = asked(engine, TEXT, Sampling(max_tokens=4)).ids
        assert asked(engine, TEXT, Sampling(**({"max_tokens": 4} | fields))).ids[:4] == greedy

    def test_prompt_tokens_count_for_repetition_alone(self, engine: RunningEngine) -> None:
        said = TEXT.ids[5]
        bias = {said: 90.0, 77: 80.0}
        frequent = Sampling(max_tokens=1, logit_bias=bias, frequency_penalty=2.0, presence_penalty=2.0)
        repeated = Sampling(max_tokens=1, logit_bias={77: 40.0}, repetition_penalty=1.5)
        assert asked(engine, TEXT, frequent).ids == [said]
        assert asked(engine, TEXT, repeated).ids == [77]

    def test_min_tokens_keeps_an_end_from_coming(self, engine: RunningEngine) -> None:
        sampling = Sampling(max_tokens=6, logit_bias={77: 100.0}, stop_token_ids=(77,), min_tokens=4)
        client = asked(engine, TEXT, sampling)
        assert client.finish.reason == "stop"
        assert 77 not in client.ids[:4]
        assert len(client.ids) <= 5

    def test_logprobs_are_the_models_own(self, engine: RunningEngine, contender: Contender) -> None:
        client = asked(engine, TEXT, Sampling(max_tokens=3, logprobs=True, top_logprobs=4))
        for place, event in enumerate(client.events):
            (told,) = event.logprobs
            logits = contender.logits_after(TEXT, client.ids[:place])
            own = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            assert told.token_id == client.ids[place]
            assert told.logprob == pytest.approx(own[told.token_id], abs=1e-3 if contender.is_exact else 0.3)
            assert [number for number, _ in told.top][0] == told.token_id
            assert [value for _, value in told.top] == sorted((value for _, value in told.top), reverse=True)
            assert len(told.top) == 4
        (alone,) = asked(engine, TEXT, Sampling(max_tokens=1, logprobs=True)).events[0].logprobs
        assert alone.top == ()

    def test_a_crowd_is_answered_as_each_alone(self, engine: RunningEngine, contender: Contender) -> None:
        prompts = [contender.prompt(spell(number, "AB"[number % 2], 7)) for number in range(1, 3 * SLOTS)]
        crowd = [prompt.client(engine, Sampling(max_tokens=9)).submit() for prompt in prompts]
        together = [client.wait() for client in crowd]
        assert engine.num_in_flight == 0
        if contender.is_exact:
            assert [client.ids for client in together] == [
                asked(engine, p, Sampling(max_tokens=9)).ids for p in prompts
            ]
        else:
            assert all(len(client.ids) == 9 for client in together)

    def test_a_client_that_fails_ends_its_own_request_alone(self, engine: RunningEngine) -> None:
        def fail(event: Event | Failure) -> None:
            raise RuntimeError("gone")

        gone = Client(engine, PROMPT, Sampling(max_tokens=LONG), on_event=fail).submit()
        assert asked(engine, TEXT, Sampling(max_tokens=4)).finish.reason == "length"
        deadline = time.monotonic() + PATIENCE_S
        while engine.num_in_flight and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not gone.events

    def test_every_figure_has_a_value(self, engine: RunningEngine) -> None:
        before = engine.figures().values("proteus_llm_ended_total").get("length", 0)
        asked(engine, TEXT, Sampling(max_tokens=2))
        figures = engine.figures()
        assert figures.values("proteus_llm_ended_total")["length"] == before + 1
        assert all(figures.values(family.name) for family in ENGINE_FIGURES)
        assert engine.num_iterations > 0

    def test_closing_ends_all(self, contender: Contender) -> None:
        engine = contender.start()
        clients = [Client(engine, PROMPT, Sampling(max_tokens=100)).submit() for _ in range(2 * SLOTS)]
        engine.close()
        ends = [client.wait().events[-1] for client in clients]
        left = [end for end in ends if isinstance(end, Failure)]
        assert left, "all had ended before"
        assert all(isinstance(end.error, Unavailable) for end in left)
        assert not engine.is_alive
        with pytest.raises(Unavailable):
            Client(engine, PROMPT).submit()
        engine.cancel(b"late")
        engine.close()


def asked(
    engine: RunningEngine, prompt: Prompt, sampling: Sampling | None = None, *, scope: str = "", names: bool = False
) -> Client:
    """The whole answer; in a scope of its own where none is given."""
    scheduling = Scheduling(cache_scope=scope)
    client = prompt.client(engine, sampling or Sampling(max_tokens=5), names=names, scheduling=scheduling)
    client.submit().wait()
    assert isinstance(client.events[-1], Event), client.events[-1]
    return client


def assert_idle(engine: RunningEngine) -> None:
    engine.check()
    assert engine.num_in_flight == 0
