"""One conversation through the stages: prepare, be admitted, encode the pictures, generate, report.

    Call → prepare.Prepared → admission.Gate → image_tokens (shared, cached) → llm → pieces

A request that can never fit is refused before it waits; one that waits holds nothing but its own bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from proteus.admission.ask import Ask
from proteus.admission.figures import Figures
from proteus.admission.gate import Gate
from proteus.backend.fleet import Fleet
from proteus.cache.figures import EncoderCacheFigures
from proteus.contract import CHAT
from proteus.cost.buckets import patches_allocated, patches_used
from proteus.cost.planner import Planner
from proteus.deployment import Deployment
from proteus.door.answers import Answers, Choice
from proteus.door.arrival import CANCELLED, STOP, Call
from proteus.door.calls import VisualTokens, encode_stages_ns, llm_calls
from proteus.door.deadline import before
from proteus.door.encoding import Encoding, Place, Versions, place, planned
from proteus.door.named import NamedRequests, StopRequest
from proteus.door.observed import Observed
from proteus.door.prepare import Preparation, Prepared
from proteus.door.reply import Listener, Piece, Reply, poll_s
from proteus.door.report import LEFT_EARLY, CachesOn, report, times_of
from proteus.door.request import document_limit
from proteus.door.seats import Seat, Seats
from proteus.families.llava import LlavaFamily
from proteus.language.kv_slots import KV_VALUE_BYTES
from proteus.language.prompt import PromptRenderer
from proteus.language.stream import Detokenizer
from proteus.language.tokenizer import load_tokenizer
from proteus.manifest import Manifest
from proteus.media.fetch import Fetcher
from proteus.stages import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A request at the door, and what is given back when it leaves."""

    call: Call
    reply: Reply
    listener: Listener
    seat: Seat
    held: AsyncExitStack
    timeline: Timeline


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
        self._detokenizer = detokenizer
        self._fleet = fleet
        planner = Planner(family=family, tiers=deployment.tiers, kv_value_bytes=KV_VALUE_BYTES)
        fetcher = Fetcher(deployment.fetch, deployment.image.max_bytes)
        self._preparation = Preparation(deployment, planner, renderer, fetcher, vocab_size=manifest.vocab_size)
        self._gate = Gate(deployment.admission)
        self._encoding = Encoding(fleet, deployment.encoder_cache, versions=Versions.of(deployment, manifest, family))
        self._seats = Seats(max_requests=_max_open(deployment), max_bytes=deployment.admission.max_open_bytes)
        self._named, self._caches_on = NamedRequests(), CachesOn.of(deployment)
        self.observed = Observed()
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
            open_requests=self._seats.taken,
            outcomes=self.observed.outcomes,
            downscaled=self._downscaled,
            decoded_pixels=self.observed.decoded_pixels,
            visual_tokens=self.observed.visual_tokens,
            patches_used=self._patches_used,
            patches_allocated=self._patches_allocated,
            unobserved=self.observed.dropped,
        )

    def cache_figures(self) -> EncoderCacheFigures:
        """Of the encoder cache, for metrics."""
        return self._encoding.figures()

    def close(self) -> None:
        """After the last request; from another thread than the event loop's."""
        self._encoding.close()

    async def answer(self, call: Call, reply: Reply) -> None:
        """Stream the answers to `reply`, report last; raises ProteusError."""
        if StopRequest.is_one(call.document):
            call.ending.outcome = STOP
            reply.send(Piece(report=self._named.answer(call, self._document_limit)))
            return
        timeline = Timeline()
        with self._seats.take(call.num_bytes) as seat:
            async with AsyncExitStack() as held:
                listener = Listener(reply, lambda: poll_s(self._seats.taken))
                visit = Visit(call=call, reply=reply, listener=listener, seat=seat, held=held, timeline=timeline)
                ready = await listener.unless_gone(self._make_ready(visit))
                if ready is None:
                    call.ending.outcome = CANCELLED
                    reply.send(Piece(report=LEFT_EARLY))
                else:
                    await self._generate(*ready, visit)

    async def _make_ready(self, visit: Visit) -> tuple[Prepared, Mapping[Place, VisualTokens]]:
        """Everything before the language model."""
        timeline = visit.timeline
        parsed = await self._preparation.parse(visit.call, timeline)
        visit.held.enter_context(self._named.open(parsed.request, visit.listener.stop))
        prepared = await self._preparation.prepare(parsed, visit.seat, timeline)
        timeline.ready()
        with timeline.stage("admission"):
            reservation = await visit.held.enter_async_context(self._gate.admitted(_ask(prepared)))
        self._count(prepared)
        encoded = await self._encode(prepared, visit)
        reservation.shrink(prepared.resources.without_decoding())
        return prepared, encoded

    async def _generate(self, prepared: Prepared, encoded: Mapping[Place, VisualTokens], visit: Visit) -> None:
        calls = llm_calls(prepared, [encoded[place(*pair)] for pair in planned(prepared)])
        answers = Answers(
            self._fleet,
            self._detokenizer,
            visit.reply,
            visit.timeline,
            lambda ended: self._told(prepared, encoded, ended, visit),
        )
        await answers.follow(calls, visit.call.context, visit.listener)

    def _told(
        self, prepared: Prepared, encoded: Mapping[Place, VisualTokens], ended: Sequence[Choice], visit: Visit
    ) -> str:
        times = times_of(ended, visit.timeline)
        cancelled = any(choice.end.finish_reason == "cancelled" for choice in ended)
        self.observed.answered(visit.call.ending, prepared, times, cancelled=cancelled)
        return report(prepared, list(encoded.values()), ended, times, self._caches_on)

    async def _encode(self, prepared: Prepared, visit: Visit) -> Mapping[Place, VisualTokens]:
        """All pictures; the stages are those of the one that was waited for longest."""
        timeline, begun_ns = visit.timeline, visit.timeline.now_ns()
        fix = "allow more time, or send smaller pictures"
        async with before(prepared.deadline_s, doing="its pictures were being encoded", fix=fix):
            encoded = await self._encoding.encode(prepared, visit.call.context)
        self.observed.encoded(prepared, encoded)
        for stage, ns in encode_stages_ns(list(encoded.values()), begun_ns).items():
            timeline.add(stage, ns)
        return encoded

    def _count(self, prepared: Prepared) -> None:
        for cost in prepared.costs:
            self._downscaled += cost.downscaled
            self._patches_used += patches_used(cost.plan)
            self._patches_allocated += patches_allocated(cost.plan)


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
