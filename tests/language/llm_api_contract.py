"""What the engine relies on in TensorRT-LLM's LLM API, asked of it alone: the stand-in here, the real one on GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proteus.language.generation import GenerationRequest
from proteus.language.sampling import Sampling
from proteus.language.tensorrt_llm_options import llm_options, open_llm
from proteus.language.tensorrt_llm_prompt import llm_inputs, media_keys
from proteus.limits_gpu import GpuLlm
from tests.language.clients import CONTEXT, SLOTS, engine_limits
from tests.language.prompts import Prompt, spell

GREEDY = {"end_id": -1, "pad_id": 0, "detokenize": False, "include_stop_str_in_output": True}
TEXT = spell(100)


class LlmApiContract:
    """A subclass gives the fixtures `api`, `checkpoint` and `widened`, which gives a prompt rows of its width."""

    @pytest.fixture(scope="class")
    @classmethod
    def llm(cls, api: Any, checkpoint: Path) -> Iterator[Any]:
        llm = open_llm(api, checkpoint=checkpoint, llm=engine_limits(), gpu=GpuLlm(runtime="tensorrt_llm"))
        yield llm
        llm.shutdown()

    def test_an_unknown_option_is_refused(self, api: Any, checkpoint: Path) -> None:
        options = llm_options(api, checkpoint=checkpoint, llm=engine_limits(), gpu=GpuLlm(runtime="tensorrt_llm"))
        with pytest.raises(Exception, match="no_such_option"):
            api.LLM(**options, no_such_option=1)
        with pytest.raises(Exception, match="no_such_field"):
            api.SamplingParams(no_such_field=1)

    def test_tokens_come_one_after_the_other_and_add_up(self, api: Any, llm: Any) -> None:
        steps = answered(llm, TEXT, api.SamplingParams(max_tokens=6, **GREEDY))
        assert [len(ids) for ids, _ in steps] == [1, 2, 3, 4, 5, 6]
        assert [reason for _, reason in steps][-1] == "length"
        assert all(
            longer[: len(shorter)] == shorter for (shorter, _), (longer, _) in zip(steps, steps[1:], strict=False)
        )

    def test_a_stop_token_is_the_last_one_told(self, api: Any, llm: Any) -> None:
        whole = answered(llm, TEXT, api.SamplingParams(max_tokens=6, **GREEDY))[-1][0]
        stop = whole[2]
        ids, reason = answered(llm, TEXT, api.SamplingParams(max_tokens=6, stop_token_ids=[stop], **GREEDY))[-1]
        assert (ids, reason) == (whole[: whole.index(stop) + 1], "stop")

    def test_an_aborted_request_ends(self, api: Any, llm: Any) -> None:
        async def abort_after_two() -> Any:
            result = ask(llm, TEXT, api.SamplingParams(max_tokens=CONTEXT - 101, **GREEDY))
            async for output in result:
                if len(output.outputs[0].token_ids) == 2:
                    result.abort()
            return result.outputs[0]

        answer = asyncio.run(abort_after_two())
        assert answer.finish_reason in ("cancelled", "length")

    def test_a_salt_keeps_equal_prompts_apart(self, api: Any, llm: Any) -> None:
        cached = [cached_tokens(api, llm, TEXT, salt) for salt in ("one", "one", "two", "two")]
        assert [tokens > 0 for tokens in cached] == [False, True, False, True]

    def test_a_salt_keeps_pictures_apart_too(self, api: Any, llm: Any, widened: Any) -> None:
        one, other = widened(spell(40, "A", 40)), widened(spell(40, "B", 40))
        cached = [cached_tokens(api, llm, prompt, salt) for prompt, salt in ((one, "A"), (other, "B"), (one, "A"))]
        assert [tokens > 0 for tokens in cached] == [False, False, True]

    def test_rows_decide_the_answer(self, api: Any, llm: Any, widened: Any) -> None:
        params = api.SamplingParams(max_tokens=5, **GREEDY)
        ids = [answered(llm, widened(spell(9, name, 9)), params, salt=name)[-1][0] for name in "ABA"]
        assert ids[0] == ids[2] != ids[1]

    def test_logprobs_have_the_chosen_token_and_the_best(self, api: Any, llm: Any) -> None:
        async def first() -> Any:
            async for output in (result := ask(llm, TEXT, api.SamplingParams(max_tokens=2, logprobs=3, **GREEDY))):
                del output
            return result.outputs[0]

        answer = asyncio.run(first())
        for token_id, told in zip(answer.token_ids, answer.logprobs, strict=True):
            assert len(told) == 3
            assert told[token_id].logprob == max(given.logprob for given in told.values()) <= 0

    def test_a_seed_is_the_requests_own(self, api: Any, llm: Any) -> None:
        def drawn(seed: int) -> list[int]:
            return answered(llm, TEXT, api.SamplingParams(max_tokens=9, temperature=1.5, seed=seed, **GREEDY))[-1][0]

        assert drawn(1) == drawn(1) != drawn(2)

    def test_more_requests_than_slots_are_all_answered(self, api: Any, llm: Any) -> None:
        async def crowd() -> list[int]:
            params = [api.SamplingParams(max_tokens=4 + number, **GREEDY) for number in range(3 * SLOTS)]
            results = [ask(llm, spell(10 + number), given) for number, given in enumerate(params)]
            return [len((await drained(result)).outputs[0].token_ids) for result in results]

        assert asyncio.run(crowd()) == [4 + number for number in range(3 * SLOTS)]


def ask(llm: Any, prompt: Prompt, params: Any, salt: str = "salt") -> Any:
    request = GenerationRequest(
        request_key=b"key",
        input_ids=np.array(prompt.ids, dtype=np.int32),
        visual_tokens=prompt.rows,
        visual_spans=prompt.spans,
        sampling=Sampling(),
    )
    inputs = llm_inputs(request, media_keys(request))
    return llm.generate_async(inputs, sampling_params=params, streaming=True, cache_salt=salt)


async def drained(result: Any) -> Any:
    async for _ in result:
        pass
    return result


def answered(llm: Any, prompt: Prompt, params: Any, salt: str = "salt") -> list[tuple[list[int], str | None]]:
    """Tokens so far and the reason to end, after each step."""

    async def steps() -> list[tuple[list[int], str | None]]:
        seen = []
        async for output in ask(llm, prompt, params, salt):
            seen.append((list(output.outputs[0].token_ids), output.outputs[0].finish_reason))
        return seen

    return asyncio.run(steps())


def cached_tokens(api: Any, llm: Any, prompt: Prompt, salt: str) -> int:
    async def count() -> int:
        result = ask(llm, prompt, api.SamplingParams(max_tokens=1, **GREEDY), salt=f"cached {salt}")
        return int((await drained(result)).cached_tokens)

    return asyncio.run(count())
