"""The fleet behind the door, as calls to the Triton models of the contract."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import suppress

import numpy as np

from proteus.backend.calls import Caller
from proteus.backend.failures import TRY_AGAIN
from proteus.backend.fleet import Context, EncodedPicture, LlmCall, LlmEvent
from proteus.backend.mailbox import unpack
from proteus.backend.tensors import Array, from_bytes
from proteus.contract import IMAGE_TOKENS, LLM, MAILBOX_KEY_BYTES, MEDIA_KEY_BYTES
from proteus.errors import ProteusError, Unavailable

SILENCE_S = 5.0  # of a model that answers every second; then it is taken for dead
RETRY_S = 0.2
TRUE = np.array([True])
NO_CONTEXT = Context(parameters={})

Arrived = asyncio.Queue[LlmEvent | ProteusError]


class TritonFleet:
    """One task collects the language model's events for all open requests, and hands them round."""

    def __init__(self) -> None:
        self._caller = Caller()
        self._mailbox = secrets.token_bytes(MAILBOX_KEY_BYTES)
        self._open: dict[bytes, Arrived] = {}  # by request key
        self._left_behind: set[bytes] = set()  # keys given up in a silence: the model may go on with them after it
        self._collecting: asyncio.Task[None] | None = None

    def close(self) -> None:
        """After the last call."""
        self._caller.close()

    async def image_tokens(
        self, picture: bytes, key: bytes, context: Context, target_px: tuple[int, int] | None = None
    ) -> EncodedPicture:
        """As in Fleet."""
        inputs: dict[str, Array] = {
            "image_bytes": from_bytes(picture)[None],
            "cache_key": from_bytes(key)[None],
            "target_px": np.array([target_px or (0, 0)], dtype=np.int32),
        }
        outputs = await self._caller.call(IMAGE_TOKENS, inputs, context)
        return EncodedPicture(
            visual_tokens=outputs["visual_tokens"][0],
            key_echo=outputs["cache_key_echo"].tobytes(),
            made_at_ns=int(outputs["made_at_ns"].reshape(-1)[0]),
        )

    async def generate(self, call: LlmCall, context: Context) -> AsyncGenerator[LlmEvent, None]:
        """As in Fleet."""
        arrived = self._open[call.request_key] = Arrived()
        try:
            if self._collecting is None or self._collecting.done():
                self._collecting = asyncio.create_task(self._collect())
            inputs = {**_inputs(call), "mailbox": from_bytes(self._mailbox)}
            await self._caller.call_decoupled(LLM, inputs, context)
            ended = False
            while not ended:
                event = await _next(arrived)
                ended = event.end is not None
                yield event
        finally:
            del self._open[call.request_key]

    async def stop(self, request_key: bytes) -> None:
        """As in Fleet."""
        inputs = {"request_key": from_bytes(request_key), "stop": TRUE}
        try:
            async with asyncio.timeout(SILENCE_S):
                await self._caller.call_decoupled(LLM, inputs, NO_CONTEXT)
        except TimeoutError as error:
            raise _silent() from error

    async def _collect(self) -> None:
        """Hand events round for as long as a request is open; when the model is gone, end them all with an error."""
        while self._open or self._left_behind:
            inputs = {"mailbox": from_bytes(self._mailbox), "collect": TRUE}
            try:
                async with asyncio.timeout(SILENCE_S):
                    outputs = await self._caller.call_decoupled(LLM, inputs, NO_CONTEXT)
            except TimeoutError:
                await self._fail_all(_silent())
                continue
            except ProteusError as error:
                await self._fail_all(error)
                continue
            await self._stop_left_behind()
            for letter in unpack(outputs["events"].tobytes(), LLM.name):
                if (arrived := self._open.get(letter.request_key)) is not None:
                    arrived.put_nowait(letter.content)

    async def _fail_all(self, error: ProteusError) -> None:
        # Events may lie in an answer that nobody waits for any more: none of these requests can go on.
        self._mailbox = secrets.token_bytes(MAILBOX_KEY_BYTES)
        self._left_behind.update(self._open)
        for arrived in self._open.values():
            arrived.put_nowait(error)
        await asyncio.sleep(RETRY_S)

    async def _stop_left_behind(self) -> None:
        """The model answers again, and whoever waited for these has been told that it does not."""
        keys, self._left_behind = self._left_behind, set()
        for key in keys:
            with suppress(ProteusError):
                await self.stop(key)


def _silent() -> Unavailable:
    return Unavailable(f"{LLM.name} does not answer", fix=TRY_AGAIN)


def _inputs(call: LlmCall) -> dict[str, Array]:
    inputs: dict[str, Array] = {
        "input_ids": call.input_ids,
        "sampling": from_bytes(call.sampling),
        "scheduling": from_bytes(call.scheduling),
        "request_key": from_bytes(call.request_key),
    }
    if call.visual_tokens is not None:
        inputs["visual_tokens"] = call.visual_tokens
        inputs["visual_spans"] = np.array(call.visual_spans, dtype=np.int32)
        inputs["media_keys"] = from_bytes(b"".join(call.media_keys)).reshape(-1, MEDIA_KEY_BYTES)
    return inputs


async def _next(arrived: Arrived) -> LlmEvent:
    """All that has arrived as one event: the busier the door, the fewer its responses."""
    contents = [await arrived.get()]
    while not arrived.empty():
        contents.append(arrived.get_nowait())
    for content in contents:
        if isinstance(content, ProteusError):
            raise content
    events = [content for content in contents if isinstance(content, LlmEvent)]
    return LlmEvent(
        text="".join(event.text for event in events),
        token_ids=tuple(token_id for event in events for token_id in event.token_ids),
        logprobs=tuple(entry for event in events for entry in event.logprobs),
        end=events[-1].end,
    )
