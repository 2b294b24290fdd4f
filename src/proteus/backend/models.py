"""The fleet behind the door, as calls to the Triton models of the contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np

from proteus.backend.calls import Caller
from proteus.backend.failures import TRY_AGAIN
from proteus.backend.fleet import Context, EncodedPicture, LlmCall, LlmEnd, LlmEvent
from proteus.backend.tensors import Array, from_bytes
from proteus.contract import IMAGE_TOKENS, LLM, REQUEST_KEY_BYTES
from proteus.errors import Unavailable

NOBODY = bytes(REQUEST_KEY_BYTES)  # a request key that no request has: to stop it asks whether the model lives
STOP_TIMEOUT_S = 5.0


class TritonFleet:
    def __init__(self) -> None:
        self._caller = Caller()

    def close(self) -> None:
        """After the last call."""
        self._caller.close()

    async def image_tokens(self, picture: bytes, key: bytes, context: Context) -> EncodedPicture:
        """As in Fleet."""
        inputs = {"image_bytes": from_bytes(picture)[None], "cache_key": from_bytes(key)[None]}
        outputs = await self._caller.call(IMAGE_TOKENS, inputs, context)
        return EncodedPicture(
            visual_tokens=outputs["visual_tokens"][0],
            key_echo=outputs["cache_key_echo"].tobytes(),
            made_at_ns=int(outputs["made_at_ns"].reshape(-1)[0]),
        )

    async def generate(self, call: LlmCall, context: Context) -> AsyncIterator[LlmEvent]:
        """As in Fleet."""
        inputs: dict[str, Array] = {
            "input_ids": call.input_ids,
            "sampling": from_bytes(call.sampling),
            "request_key": from_bytes(call.request_key),
        }
        if call.visual_tokens is not None:
            inputs["visual_tokens"] = call.visual_tokens
            inputs["visual_spans"] = np.array(call.visual_spans, dtype=np.int32)
        ended = False
        async for outputs in self._caller.stream(LLM, inputs, context, self._ping):
            event = _event(outputs)  # one for all that waited: the busier the door, the fewer its responses
            ended = event.end is not None
            yield event
        if not ended:
            raise Unavailable(f"{LLM.name} stopped answering", fix=TRY_AGAIN)

    async def stop(self, request_key: bytes) -> None:
        """As in Fleet."""
        inputs = {"request_key": from_bytes(request_key), "stop": np.array([True])}
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                async for _ in self._caller.stream(LLM, inputs, Context(parameters={}), _wait_on):
                    pass
        except TimeoutError as error:
            raise Unavailable(f"{LLM.name} does not answer", fix=TRY_AGAIN) from error

    async def _ping(self) -> None:
        await self.stop(NOBODY)


async def _wait_on() -> None:
    """For a stream whose end has a timeout of its own."""


def _event(responses: list[dict[str, Array]]) -> LlmEvent:
    end, last = None, responses[-1]
    if "finish_reason" in last:
        queue_us, prefill_us, decode_us = last["stage_us"].tolist()
        reason = last["finish_reason"].tobytes().decode()
        end = LlmEnd(finish_reason=reason, queue_us=queue_us, prefill_us=prefill_us, decode_us=decode_us)
    text = b"".join(outputs["text"].tobytes() for outputs in responses).decode()
    token_ids = tuple(token_id for outputs in responses for token_id in outputs["token_ids"].tolist())
    return LlmEvent(text=text, token_ids=token_ids, end=end)
