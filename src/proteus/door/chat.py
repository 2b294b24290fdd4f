"""One conversation through the stages: prepare, be admitted, encode the pictures, generate, report.

    Call → prepare.Prepared → admission.Gate → image_tokens (shared, cached) → llm → pieces

A request that can never fit is refused before it waits; one that waits holds nothing but its own bytes.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from proteus.admission.ask import Ask
from proteus.admission.figures import Figures
from proteus.admission.gate import Gate
from proteus.backend.fleet import Context, Fleet
from proteus.cache.key import PictureKeyFields, picture_key
from proteus.cache.single_flight import SingleFlight
from proteus.contract import CHAT, VISUAL_TOKENS
from proteus.cost.buckets import patches_allocated, patches_used
from proteus.cost.planner import MediaCost, Planner
from proteus.cost.vector import ResourceVector
from proteus.deployment import Deployment
from proteus.door.answers import Answers
from proteus.door.arrival import Call
from proteus.door.calls import Source, VisualTokens, llm_calls
from proteus.door.named import NamedRequests, StopRequest
from proteus.door.pictures import Picture
from proteus.door.prepare import Preparation, Prepared
from proteus.door.reply import Listener, Piece, Reply, poll_s
from proteus.door.report import LEFT_EARLY, report
from proteus.door.request import document_limit
from proteus.door.seats import Seat, Seats
from proteus.door.together import together
from proteus.errors import InternalError, InvalidRequest, MediaTooLarge
from proteus.families.llava import LlavaFamily
from proteus.language.kv_slots import KV_VALUE_BYTES
from proteus.language.prompt import PromptRenderer
from proteus.language.stream import Detokenizer
from proteus.language.tokenizer import load_tokenizer
from proteus.manifest import Manifest
from proteus.media.fetch import Fetcher
from proteus.preprocess.pixels import POLICY
from proteus.stages import Stopwatch

Place = tuple[bytes, tuple[int, int] | None]  # digest of a picture and the size it is given as: what is encoded once


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A request at the door, and what is given back when it leaves."""

    call: Call
    reply: Reply
    listener: Listener
    seat: Seat
    held: AsyncExitStack
    watch: Stopwatch


class Chat:
    """The door of one deployment; holds what is admitted and waits, nothing of a request that ended."""

    def __init__(
        self,
        deployment: Deployment,
        manifest: Manifest,
        family: LlavaFamily,
        renderer: PromptRenderer,
        detokenizer: Detokenizer,
        fleet: Fleet,
    ) -> None:
        self._document_limit = document_limit(deployment.text)
        self._manifest = manifest
        self._detokenizer = detokenizer
        self._fleet = fleet
        planner = Planner(family=family, tiers=deployment.tiers, kv_value_bytes=KV_VALUE_BYTES)
        fetcher = Fetcher(deployment.fetch, deployment.image.max_bytes)
        self._preparation = Preparation(deployment, planner, renderer, fetcher, vocab_size=manifest.vocab_size)
        self._gate = Gate(deployment.admission)
        self._encoding = SingleFlight[bytes, VisualTokens](shared_errors=(InvalidRequest, MediaTooLarge))
        self._seats = Seats(max_requests=_max_open(deployment), max_bytes=deployment.admission.max_open_bytes)
        self._named = NamedRequests()
        self._downscaled = self._patches_used = self._patches_allocated = 0

    @classmethod
    def from_deployment(cls, deployment: Deployment, fleet: Fleet) -> Chat:
        """Reads the checkpoint and the export's manifest; raises when they cannot be served."""
        return cls(
            deployment,
            Manifest.load(deployment.repository_path),
            LlavaFamily.from_checkpoint(deployment.checkpoint_path),
            PromptRenderer.from_checkpoint(deployment.checkpoint_path),
            Detokenizer(load_tokenizer(deployment.checkpoint_path)),
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
        """Stream the answers to `reply`, report last; raises ProteusError."""
        if StopRequest.is_one(call.document):
            reply.send(Piece(report=self._named.answer(call, self._document_limit)))
            return
        watch = Stopwatch()
        with self._seats.take(call.num_bytes) as seat:
            async with AsyncExitStack() as held:
                listener = Listener(reply, lambda: poll_s(self._seats.taken))
                visit = Visit(call=call, reply=reply, listener=listener, seat=seat, held=held, watch=watch)
                ready = await listener.unless_gone(self._make_ready(visit))
                if ready is None:
                    reply.send(Piece(report=LEFT_EARLY))
                else:
                    await self._generate(*ready, visit)

    async def _make_ready(self, visit: Visit) -> tuple[Prepared, Mapping[Place, VisualTokens]]:
        """Everything before the language model."""
        watch = visit.watch
        parsed = await self._preparation.parse(visit.call, watch)
        visit.held.enter_context(self._named.open(parsed.request, visit.listener.stop))
        prepared = await self._preparation.prepare(parsed, visit.seat, watch)
        with watch.stage("admission"):
            reservation = await visit.held.enter_async_context(self._gate.admitted(_ask(prepared)))
        self._count(prepared)
        with watch.stage("encode"):
            encoded = await self._encode(prepared, visit.call.context)
        reservation.shrink(_without_decoding(prepared.resources))
        return prepared, encoded

    async def _generate(self, prepared: Prepared, encoded: Mapping[Place, VisualTokens], visit: Visit) -> None:
        calls = llm_calls(prepared, [encoded[_place(*planned)] for planned in _planned(prepared)])
        sources = [tokens.source for tokens in encoded.values()]
        answers = Answers(
            self._fleet,
            self._detokenizer,
            visit.reply,
            lambda ended: report(prepared, sources, ended, visit.watch),
        )
        await answers.follow(calls, visit.call.context, visit.listener)

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
        name = picture_key(fields)
        for salt in (b"", secrets.token_bytes(16)):
            key = picture_key(replace(fields, salt=salt))
            asked_at_ns = time.monotonic_ns()
            encoded = await self._fleet.image_tokens(data, key, context, target_px)
            if encoded.key_echo == key:
                source: Source = "cached" if encoded.made_at_ns < asked_at_ns else "encoded"
                return VisualTokens(encoded.visual_tokens, source, name)
        raise InternalError


def _max_open(deployment: Deployment) -> int:
    queues = deployment.admission.queues
    waiting = queues.text.max_queue + queues.media.max_queue + queues.batch.max_queue
    return waiting + (deployment.admission.capacity.requests or deployment.llm.slots + deployment.llm.max_queue)


def _ask(prepared: Prepared) -> Ask:
    return Ask(
        vector=prepared.resources,
        latency_class=prepared.latency_class,
        tenant=prepared.request.owner,
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
