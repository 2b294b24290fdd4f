"""The fleet behind `chat`, as calls to the Triton models of the contract."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import numpy as np

from proteus.backend.calls import Caller
from proteus.backend.collector import Collector
from proteus.backend.fleet import Context, EncodedPicture, LlmCall, LlmEvent
from proteus.backend.letters import unpack
from proteus.backend.tensors import Array, from_bytes
from proteus.contract import IMAGE_TOKENS, LLM, MEDIA_KEY_BYTES
from proteus.stages import EncodeMarks, Span


class TritonFleet:
    """As Fleet, for one event loop."""

    def __init__(self) -> None:
        self._caller = Caller()
        self._llm = Collector(self._caller, LLM, lambda outputs: unpack(outputs["events"].tobytes(), LLM.name))

    def close(self) -> None:
        """After the last call."""
        self._caller.close()

    async def image_tokens(
        self, picture: bytes, scope_key: bytes, context: Context, target_px: tuple[int, int] | None = None
    ) -> EncodedPicture:
        """As in Fleet."""
        inputs: dict[str, Array] = {
            "image_bytes": from_bytes(picture)[None],
            "scope_key": from_bytes(scope_key)[None],
            "target_px": np.array([target_px or (0, 0)], dtype=np.int32),
        }
        outputs = await self._caller.call(IMAGE_TOKENS, inputs, context)
        return EncodedPicture(
            visual_tokens=outputs["visual_tokens"][0],
            marks=EncodeMarks(
                preprocess=_span(outputs["preprocess_ns"]),
                encoder=_span(outputs["encoder_ns"]),
                connector=_span(outputs["connector_ns"]),
            ),
            preprocess_saved_us=int(outputs["preprocess_saved_us"].reshape(-1)[0]),
        )

    async def generate(self, call: LlmCall, context: Context) -> AsyncGenerator[LlmEvent, None]:
        """As in Fleet."""
        async with aclosing(self._llm.follow(call.request_key, _inputs(call), context)) as arrivals:
            async for events in arrivals:
                event = _together(events)
                yield event
                if event.end is not None:
                    return

    async def stop(self, request_key: bytes) -> None:
        """As in Fleet."""
        await self._llm.stop(request_key)


def _span(ns: Array) -> Span:
    begun_ns, done_ns = ns.reshape(-1).tolist()
    return begun_ns, done_ns


def _inputs(call: LlmCall) -> dict[str, Array]:
    inputs: dict[str, Array] = {
        "input_ids": call.input_ids,
        "sampling": from_bytes(call.sampling),
        "scheduling": from_bytes(call.scheduling),
    }
    if call.visual_tokens is not None:
        inputs["visual_tokens"] = call.visual_tokens
        inputs["visual_spans"] = np.array(call.visual_spans, dtype=np.int32)
        inputs["media_keys"] = from_bytes(b"".join(call.media_keys)).reshape(-1, MEDIA_KEY_BYTES)
    return inputs


def _together(events: Sequence[LlmEvent]) -> LlmEvent:
    """All that has arrived as one event: the busier the door, the fewer its responses."""
    return LlmEvent(
        text="".join(event.text for event in events),
        token_ids=tuple(token_id for event in events for token_id in event.token_ids),
        logprobs=tuple(entry for event in events for entry in event.logprobs),
        end=events[-1].end,
    )
