"""One conversation through the stages: prepare, be admitted, encode the pictures, generate, report.

    Call → prepare.Prepared → admission.Gate → image_tokens (shared, cached) → llm → pieces

A request that can never fit is refused before it waits; one that waits holds nothing but its own bytes.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from proteus.admission.ask import Ask
from proteus.admission.figures import Figures
from proteus.admission.gate import Gate
from proteus.backend.fleet import Context, Fleet, LlmCall, LlmEnd
from proteus.cache.key import PictureKeyFields, picture_key
from proteus.cache.single_flight import SingleFlight
from proteus.contract import CHAT, VISUAL_TOKENS
from proteus.cost.buckets import patches_allocated, patches_used
from proteus.cost.planner import MediaCost, Planner
from proteus.cost.vector import ResourceVector
from proteus.deployment import Deployment
from proteus.door.pictures import Picture
from proteus.door.prepare import Call, Preparation, Prepared
from proteus.door.seats import Seat, Seats
from proteus.door.together import together
from proteus.errors import InternalError, InvalidRequest, MediaTooLarge, ProteusError
from proteus.families.llava import LlavaFamily
from proteus.language.kv_slots import KV_VALUE_BYTES
from proteus.language.prompt import PromptRenderer
from proteus.manifest import Manifest
from proteus.media.fetch import Fetcher
from proteus.preprocess.pixels import POLICY
from proteus.stages import Stopwatch

CANCEL_POLL_S = 0.1  # between two looks whether a client is still there …
POLLS_PER_S = 640  # … and no more looks than these at all clients together: each one stops the event loop
# To a client that left before the language model had its request.
LEFT_EARLY = json.dumps(
    {
        "finish_reason": "cancelled",
        "usage": {"text_tokens": 0, "visual_tokens": 0, "output_tokens": 0},
        "stages_ms": {},
        "pictures": [],
    }
)
Done = TypeVar("Done")
Source = Literal["encoded", "cached", "shared"]
Place = tuple[bytes, tuple[int, int] | None]  # digest of a picture and the size it is given as: what is encoded once


class Reply(Protocol):
    """Where the answer goes; `report` comes with the last piece and ends it."""

    def send(self, text: str, token_ids: Sequence[int], report: str | None) -> None: ...

    def is_cancelled(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class VisualTokens:
    rows: npt.NDArray[np.float32]  # (N, D)
    source: Source


class Chat:
    """The door of one deployment; holds what is admitted and waits, nothing of a request that ended."""

    def __init__(
        self, deployment: Deployment, manifest: Manifest, family: LlavaFamily, renderer: PromptRenderer, fleet: Fleet
    ) -> None:
        self._manifest = manifest
        self._fleet = fleet
        planner = Planner(family=family, tiers=deployment.tiers, kv_value_bytes=KV_VALUE_BYTES)
        fetcher = Fetcher(deployment.fetch, deployment.image.max_bytes)
        self._preparation = Preparation(deployment, planner, renderer, fetcher)
        self._gate = Gate(deployment.admission)
        self._encoding = SingleFlight[bytes, VisualTokens](shared_errors=(InvalidRequest, MediaTooLarge))
        self._seats = Seats(max_requests=_max_open(deployment), max_bytes=deployment.admission.max_open_bytes)
        self._downscaled = self._patches_used = self._patches_allocated = 0

    @classmethod
    def from_deployment(cls, deployment: Deployment, fleet: Fleet) -> Chat:
        """Reads the checkpoint and the export's manifest; raises when they cannot be served."""
        return cls(
            deployment,
            Manifest.load(deployment.repository_path),
            LlavaFamily.from_checkpoint(deployment.checkpoint_path),
            PromptRenderer.from_checkpoint(deployment.checkpoint_path),
            fleet,
        )

    def figures(self) -> Figures:
        """What is held, waits, was refused and was padded, for metrics."""
        return Figures(
            admission=self._gate.snapshot(),
            downscaled=self._downscaled,
            patches_used=self._patches_used,
            patches_allocated=self._patches_allocated,
        )

    async def answer(self, call: Call, reply: Reply) -> None:
        """Stream the answer to `reply`, report last; raises ProteusError."""
        watch = Stopwatch()
        with self._seats.take(call.num_bytes) as seat:
            async with AsyncExitStack() as held:
                ready = await _unless_gone(self._make_ready(call, seat, held, watch), reply, self._poll_s)
                if ready is None:
                    reply.send("", (), LEFT_EARLY)
                else:
                    await self._generate(*ready, call.context, reply, watch)

    async def _make_ready(
        self, call: Call, seat: Seat, held: AsyncExitStack, watch: Stopwatch
    ) -> tuple[Prepared, Mapping[Place, VisualTokens]]:
        """Everything before the language model; what the request holds is given back with `held`."""
        prepared = await self._preparation.prepare(call, seat, watch)
        with watch.stage("admission"):
            reservation = await held.enter_async_context(self._gate.admitted(_ask(prepared)))
        self._count(prepared)
        with watch.stage("encode"):
            encoded = await self._encode(prepared, call.context)
        reservation.shrink(_without_decoding(prepared.resources))
        return prepared, encoded

    def _poll_s(self) -> float:
        return max(CANCEL_POLL_S, self._seats.taken / POLLS_PER_S)

    def _count(self, prepared: Prepared) -> None:
        for cost in prepared.costs:
            self._downscaled += cost.downscaled
            self._patches_used += patches_used(cost.plan)
            self._patches_allocated += patches_allocated(cost.plan)

    async def _encode(self, prepared: Prepared, context: Context) -> Mapping[Place, VisualTokens]:
        """Visual tokens of each distinct picture, all at once; the first that is refused ends the others."""
        distinct: dict[Place, tuple[int, Picture, MediaCost]] = {}
        for number, (picture, cost) in enumerate(_planned(prepared), start=1):
            distinct.setdefault(_place(picture, cost), (number, picture, cost))
        scope = prepared.request.cache_scope
        tokens = await together(self._encode_named(*named, scope, context) for named in distinct.values())
        return dict(zip(distinct, tokens, strict=True))

    async def _encode_named(
        self, number: int, picture: Picture, cost: MediaCost, cache_scope: str, context: Context
    ) -> VisualTokens:
        """A picture that is to blame is named by its number, as it was where its header was read."""
        try:
            return await self._encode_shared(picture, cost, cache_scope, context)
        except (InvalidRequest, MediaTooLarge) as error:
            raise error.about(f"picture {number}") from error

    async def _encode_shared(
        self, picture: Picture, cost: MediaCost, cache_scope: str, context: Context
    ) -> VisualTokens:
        fields = PictureKeyFields(
            cache_scope=cache_scope,
            revision=self._manifest.revision,
            policy=POLICY,
            plan=f"{cost.bucket.label}, {cost.given_px} px, {cost.plan.visual_tokens} visual tokens",
            dtype=VISUAL_TOKENS.dtype,
            media_digest=picture.digest,
        )
        target_px = cost.given_px if cost.downscaled else None
        landing = await self._encoding.run(
            picture_key(fields), lambda: self._encode_checked(picture.data, target_px, fields, context)
        )
        return replace(landing.value, source="shared") if landing.shared else landing.value

    async def _encode_checked(
        self, data: bytes, target_px: tuple[int, int] | None, fields: PictureKeyFields, context: Context
    ) -> VisualTokens:
        """Ask for the picture's tokens; an answer made for another key is a collision, and asked for anew."""
        for salt in (b"", secrets.token_bytes(16)):
            key = picture_key(replace(fields, salt=salt))
            asked_at_ns = time.monotonic_ns()
            encoded = await self._fleet.image_tokens(data, key, context, target_px)
            if encoded.key_echo == key:
                source: Source = "cached" if encoded.made_at_ns < asked_at_ns else "encoded"
                return VisualTokens(encoded.visual_tokens, source)
        raise InternalError

    async def _generate(
        self,
        prepared: Prepared,
        encoded: Mapping[Place, VisualTokens],
        context: Context,
        reply: Reply,
        watch: Stopwatch,
    ) -> None:
        call = _llm_call(prepared, encoded)
        output_tokens = 0
        async with self._stopped_on_cancel(call.request_key, reply):
            async for event in self._fleet.generate(call, context):
                output_tokens += len(event.token_ids)
                report = None
                if event.end is not None:
                    report = _report(prepared, encoded, event.end, output_tokens, watch)
                reply.send(event.text, event.token_ids, report)

    @asynccontextmanager
    async def _stopped_on_cancel(self, request_key: bytes, reply: Reply) -> AsyncIterator[None]:
        """Triton hands no cancel on to a model's children: ask for the client's, and send the language model a stop."""

        async def watch() -> None:
            while not reply.is_cancelled():
                await asyncio.sleep(self._poll_s())
            await self._fleet.stop(request_key)

        watching = asyncio.create_task(watch())
        try:
            yield
        except ProteusError:
            raise  # the language model ended the stream itself
        except Exception:
            await self._fleet.stop(request_key)
            raise
        finally:
            watching.cancel()


async def _unless_gone(work: Coroutine[Any, Any, Done], reply: Reply, poll_s: Callable[[], float]) -> Done | None:
    """What `work` gives, or None when the client left first; the work is ended then."""
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({task}, timeout=poll_s()))[0] and not reply.is_cancelled():
            pass
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    return None if task.cancelled() else task.result()


def _max_open(deployment: Deployment) -> int:
    queues = deployment.admission.queues
    waiting = queues.text.max_queue + queues.media.max_queue + queues.batch.max_queue
    return waiting + (deployment.admission.capacity.requests or deployment.llm.slots + deployment.llm.max_queue)


def _ask(prepared: Prepared) -> Ask:
    request = prepared.request
    return Ask(
        vector=prepared.resources,
        latency_class=prepared.latency_class,
        tenant=request.tenant or request.cache_scope,
        model=CHAT.name,
        deadline_s=prepared.deadline_s,
    )


def _without_decoding(resources: ResourceVector) -> ResourceVector:
    """What is still held once every picture is encoded."""
    return replace(resources, media_bytes=0, decoded_pixels=0, decode_bytes=0, patches=0, encoder_flops=0)


def _planned(prepared: Prepared) -> Iterator[tuple[Picture, MediaCost]]:
    return zip(prepared.pictures, prepared.costs, strict=True)


def _place(picture: Picture, cost: MediaCost) -> Place:
    return picture.digest, cost.given_px


def _llm_call(prepared: Prepared, encoded: Mapping[Place, VisualTokens]) -> LlmCall:
    rows = [encoded[_place(picture, cost)].rows for picture, cost in _planned(prepared)]
    spans = prepared.prompt.visual_spans
    if [len(tokens) for tokens in rows] != [length for _, length in spans]:
        raise InternalError
    request = prepared.request
    sampling = {
        "max_tokens": prepared.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "seed": request.seed,
        "stop": request.stop,
    }
    return LlmCall(
        request_key=secrets.token_bytes(16),
        input_ids=prepared.prompt.input_ids,
        visual_tokens=np.concatenate(rows) if rows else None,
        visual_spans=tuple(spans),
        sampling=json.dumps(sampling).encode(),
    )


def _report(
    prepared: Prepared, encoded: Mapping[Place, VisualTokens], end: LlmEnd, output_tokens: int, watch: Stopwatch
) -> str:
    for stage, us in (("queue", end.queue_us), ("prefill", end.prefill_us), ("decode", end.decode_us)):
        watch.add(stage, us / 1e3)
    return json.dumps(
        {
            "finish_reason": end.finish_reason,
            "usage": {
                "text_tokens": prepared.prompt.text_tokens,
                "visual_tokens": prepared.prompt.visual_tokens,
                "output_tokens": output_tokens,
            },
            "stages_ms": watch.report_ms(),
            "pictures": [tokens.source for tokens in encoded.values()],
        }
    )
