"""The fleet behind `chat`, as calls to the Triton models of the contract."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

import numpy as np

from proteus.admission.figures import Figure
from proteus.backend.calls import Caller
from proteus.backend.collector import Collector
from proteus.backend.fleet import Context, EncodedPicture, LlmCall, LlmEvent
from proteus.backend.letters import unpack
from proteus.backend.remote_figures import ENCODER_POOL_FIGURES, EncoderPoolFigures
from proteus.backend.tensors import Array, from_bytes
from proteus.contract import IMAGE_TOKENS, LLM, MEDIA_KEY_BYTES
from proteus.deployment import Deployment
from proteus.manifest import Manifest
from proteus.stages import EncodeMarks, Span

if TYPE_CHECKING:
    from proteus.backend.remote import RemoteEncoders


class TritonFleet:
    """As Fleet, for one event loop."""

    def __init__(self, *, encoders: RemoteEncoders | None = None, encoder: str = "") -> None:
        """`encoders` encode pictures in place of this server's own models, which `encoder` names."""
        self._encoders, self._encoder = encoders, encoder
        self._caller = Caller()
        self._llm = Collector(self._caller, LLM, lambda outputs: unpack(outputs["events"].tobytes(), LLM.name))

    @classmethod
    def of(cls, deployment: Deployment, hardware: str) -> TritonFleet:
        """Of a server that runs on `hardware`; raises DeploymentError where nothing is exported."""
        if deployment.encoder_pool is None:
            return cls(encoder=_encoder_on(deployment, hardware))
        # Only here: gRPC is 20 MB that a door without an encoder pool needs not.
        from proteus.backend.remote import RemoteEncoders
        from proteus.backend.remote_server import Wanted

        manifest = Manifest.load(deployment.repository_path)
        wanted = Wanted(revision=manifest.revision, shape=(manifest.visual_tokens, manifest.hidden_size))
        return cls(encoders=RemoteEncoders(deployment.encoder_pool, wanted))

    def close(self) -> None:
        """After the last call, from another thread than the event loop's."""
        if self._encoders is not None:
            self._encoders.close()
        self._caller.close()

    def figures(self) -> Sequence[tuple[Sequence[Figure], Callable[[], EncoderPoolFigures]]]:
        """What there is to tell of other servers, and how to ask for it."""
        return [] if self._encoders is None else [(ENCODER_POOL_FIGURES, self._encoders.figures)]

    async def encoder(self) -> str:
        """As in Fleet."""
        return self._encoder if self._encoders is None else await self._encoders.encoder()

    async def image_tokens(
        self, picture: bytes, scope_key: bytes, context: Context, target_px: tuple[int, int] | None = None
    ) -> EncodedPicture:
        """As in Fleet."""
        if self._encoders is not None:
            return await self._encoders.image_tokens(picture, scope_key, context, target_px)
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
            encoder=self._encoder,
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


def _encoder_on(deployment: Deployment, hardware: str) -> str:
    """Names what the stages of this server run on, where it is not the CPU: their files may be the same on both."""
    if hardware == "cpu" or deployment.gpu is None:
        return ""
    stages = {"vision_encoder": deployment.gpu.vision_encoder, "connector": deployment.gpu.connector}
    return "; ".join([hardware, *(f"{name} {stage.runtime} {stage.precision}" for name, stage in stages.items())])


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
