"""The fleet behind `draw`, as calls to the Triton models of the contract. Z latent channels, h and w in latents."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing

import numpy as np
import numpy.typing as npt

from proteus.backend.calls import Caller, Outputs
from proteus.backend.collector import Collector
from proteus.backend.draw_documents import write_scheduling, write_settings
from proteus.backend.draw_letters import DrawLetter, unpack
from proteus.backend.fleet import Context, EncodedText
from proteus.backend.tensors import Array, from_bytes
from proteus.contract_draw import DENOISER, VAE_DECODER, text_encoder_of
from proteus.generation.task import Condition, DrawEvent, DrawTask, Floats
from proteus.manifest import DrawManifest


class TritonDrawFleet:
    """As DrawFleet, for one event loop and one checkpoint."""

    def __init__(self, manifest: DrawManifest) -> None:
        self._caller = Caller()
        self._text_encoder = text_encoder_of(
            [text_input.tensor for text_input in manifest.text_inputs], pooled=manifest.pooled_width > 0
        )
        self._denoiser = Collector(self._caller, DENOISER, _letters)

    def close(self) -> None:
        """After the last call."""
        self._caller.close()

    async def condition(self, ids: Mapping[str, npt.NDArray[np.int64]], key: bytes, context: Context) -> EncodedText:
        """As in DrawFleet."""
        inputs: dict[str, Array] = {name: row[None] for name, row in ids.items()}
        outputs = await self._caller.call(self._text_encoder, {**inputs, "cache_key": from_bytes(key)[None]}, context)
        pooled = outputs.get("pooled")
        return EncodedText(
            condition=Condition(states=outputs["text_states"][0], pooled=None if pooled is None else pooled[0]),
            key_echo=outputs["cache_key_echo"].tobytes(),
        )

    async def denoise(self, task: DrawTask, context: Context) -> AsyncGenerator[DrawEvent, None]:
        """As in DrawFleet."""
        async with aclosing(self._denoiser.follow(task.request_key, _inputs(task), context)) as arrivals:
            async for events in arrivals:
                yield events[-1]
                if events[-1].end is not None:
                    return

    async def stop(self, request_key: bytes) -> None:
        """As in DrawFleet."""
        await self._denoiser.stop(request_key)

    async def decode(self, latents: Floats, context: Context) -> npt.NDArray[np.uint8]:
        """As in DrawFleet."""
        outputs = await self._caller.call(VAE_DECODER, {"latents": np.ascontiguousarray(latents[None])}, context)
        pixels: npt.NDArray[np.uint8] = outputs["pixels"][0]
        return pixels


def _letters(outputs: Outputs) -> Iterator[DrawLetter]:
    """The one output may be left out, when no event has latents."""
    latents = outputs.get("event_latents", np.empty(0, dtype=np.float32))
    return unpack(outputs["events"].tobytes(), latents, DENOISER.name)


def _inputs(task: DrawTask) -> dict[str, Array]:
    inputs: dict[str, Array] = {
        "settings": from_bytes(write_settings(task.settings)),
        "scheduling": from_bytes(write_scheduling(task, time.monotonic())),
    }
    for condition, states, pooled in (
        (task.prompt, "text_states", "pooled"),
        (task.negative, "negative_states", "negative_pooled"),
    ):
        if condition is not None:
            inputs[states] = np.ascontiguousarray(condition.states)
            if condition.pooled is not None:
                inputs[pooled] = np.ascontiguousarray(condition.pooled)
    return inputs
