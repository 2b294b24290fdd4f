"""The fleet behind the door, as calls to the Triton models of the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from proteus.backend import calls
from proteus.backend.fleet import Context, EncodedPicture, LlmCall, LlmEnd, LlmEvent
from proteus.backend.tensors import Array, from_bytes
from proteus.contract import IMAGE_TOKENS, LLM


class TritonFleet:
    """A thread per open stream reads the language model's responses, another one those of its `stop`."""

    def __init__(self, *, max_streams: int) -> None:
        self._pumps = ThreadPoolExecutor(2 * max_streams, thread_name_prefix="pump")

    async def image_tokens(self, picture: bytes, key: bytes, context: Context) -> EncodedPicture:
        inputs = {"image_bytes": from_bytes(picture)[None], "cache_key": from_bytes(key)[None]}
        outputs = await calls.call(IMAGE_TOKENS, inputs, context)
        return EncodedPicture(
            visual_tokens=outputs["visual_tokens"][0],
            key_echo=outputs["cache_key_echo"].tobytes(),
            made_at_ns=int(outputs["made_at_ns"].reshape(-1)[0]),
        )

    async def generate(self, call: LlmCall, context: Context) -> AsyncIterator[LlmEvent]:
        inputs: dict[str, Array] = {
            "input_ids": call.input_ids,
            "sampling": from_bytes(call.sampling),
            "request_key": from_bytes(call.request_key),
        }
        if call.visual_tokens is not None:
            inputs["visual_tokens"] = call.visual_tokens
            inputs["visual_spans"] = np.array(call.visual_spans, dtype=np.int32)
        ended = False
        async for outputs in calls.stream(LLM, inputs, context, self._pumps):
            event = _event(outputs)
            ended = event.end is not None
            yield event
        if not ended:
            raise calls.ended_early(LLM)

    async def stop(self, request_key: bytes) -> None:
        inputs = {"request_key": from_bytes(request_key), "stop": np.array([True])}
        async for _ in calls.stream(LLM, inputs, Context(parameters={}), self._pumps):
            pass

    def close(self) -> None:
        self._pumps.shutdown(wait=False, cancel_futures=True)


def _event(outputs: dict[str, Array]) -> LlmEvent:
    end = None
    if "finish_reason" in outputs:
        queue_us, prefill_us, decode_us = outputs["stage_us"].tolist()
        reason = outputs["finish_reason"].tobytes().decode()
        end = LlmEnd(finish_reason=reason, queue_us=queue_us, prefill_us=prefill_us, decode_us=decode_us)
    return LlmEvent(text=outputs["text"].tobytes().decode(), token_ids=tuple(outputs["token_ids"].tolist()), end=end)
