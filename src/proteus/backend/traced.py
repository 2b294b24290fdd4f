"""The fleets behind the doors, with a span for every call of a request that is traced."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractContextManager, aclosing, nullcontext

import numpy as np
import numpy.typing as npt

from proteus.backend.fleet import Context, DrawFleet, EncodedPicture, EncodedText, Fleet, LlmCall, LlmEnd, LlmEvent
from proteus.backend.spans import Trace
from proteus.generation.task import DrawEvent, DrawTask

US = 1_000  # ns


class TracedFleet:
    """As Fleet. What a call was made of is told by the models: the times of their batches, and the engine's."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def encoder(self) -> str:
        """As in Fleet."""
        return await self._fleet.encoder()

    async def image_tokens(
        self, picture: bytes, scope_key: bytes, context: Context, target_px: tuple[int, int] | None = None
    ) -> EncodedPicture:
        """As in Fleet."""
        with _during(context, "image_tokens") as span_id:
            encoded = await self._fleet.image_tokens(picture, scope_key, context, target_px)
            if context.trace is not None:
                marks = encoded.marks
                context.trace.add("image_preprocess", marks.preprocess, span_id)
                context.trace.add("vision_encoder", marks.encoder, span_id)
                context.trace.add("connector", marks.connector, span_id)
            return encoded

    async def generate(self, call: LlmCall, context: Context) -> AsyncGenerator[LlmEvent, None]:
        """As in Fleet."""
        with _during(context, "llm") as span_id:
            async with aclosing(self._fleet.generate(call, context)) as events:
                async for event in events:
                    if event.end is not None and context.trace is not None:
                        _add_parts(context.trace, event.end, span_id)
                    yield event

    async def stop(self, request_key: bytes) -> None:
        """As in Fleet."""
        await self._fleet.stop(request_key)


class TracedDrawFleet:
    """As DrawFleet."""

    def __init__(self, fleet: DrawFleet) -> None:
        self._fleet = fleet

    async def condition(self, ids: Mapping[str, npt.NDArray[np.int64]], key: bytes, context: Context) -> EncodedText:
        """As in DrawFleet."""
        with _during(context, "text_encoder"):
            return await self._fleet.condition(ids, key, context)

    async def denoise(self, task: DrawTask, context: Context) -> AsyncGenerator[DrawEvent, None]:
        """As in DrawFleet."""
        with _during(context, "denoiser"):
            async with aclosing(self._fleet.denoise(task, context)) as events:
                async for event in events:
                    yield event

    async def stop(self, request_key: bytes) -> None:
        """As in DrawFleet."""
        await self._fleet.stop(request_key)

    async def decode(self, latents: npt.NDArray[np.float32], context: Context) -> npt.NDArray[np.uint8]:
        """As in DrawFleet."""
        with _during(context, "vae_decoder"):
            return await self._fleet.decode(latents, context)


def _during(context: Context, name: str) -> AbstractContextManager[str]:
    return nullcontext("") if context.trace is None else context.trace.during(name)


def _add_parts(trace: Trace, end: LlmEnd, span_id: str) -> None:
    """The engine tells how long each took: they are laid one before the other, up to now."""
    done_ns = time.monotonic_ns()
    for name, us in (("decode", end.decode_us), ("prefill", end.prefill_us), ("lm_queue", end.queue_us)):
        begun_ns = done_ns - us * US
        trace.add(name, (begun_ns, done_ns), span_id)
        done_ns = begun_ns
