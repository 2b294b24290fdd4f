"""One request to draw through the stages: plan, be admitted, encode the texts, denoise, decode, encode, report.

    Call → draw_plan.DrawPlan → admission.Gate → text_encoder (shared, cached) → denoiser → vae_decoder → pieces

A request that can never fit is refused before it waits; one that waits holds nothing but its own bytes.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from proteus.admission.ask import Ask
from proteus.admission.gate import Gate
from proteus.admission.ledger import Reservation
from proteus.backend.fleet import DrawFleet
from proteus.contract import REQUEST_KEY_BYTES
from proteus.contract_draw import DRAW
from proteus.deployment import Deployment, Drawing
from proteus.door.arrival import CANCELLED, STOP, Call
from proteus.door.draw_conditions import Conditions
from proteus.door.draw_figures import DoorFigures, DrawCounts
from proteus.door.draw_finish import Finishing
from proteus.door.draw_pictures import Pictures, Studio
from proteus.door.draw_plan import DrawPlan, DrawPreparation
from proteus.door.draw_previews import AT_ONCE
from proteus.door.draw_report import LEFT_EARLY
from proteus.door.draw_request import document_limit
from proteus.door.draw_text import PromptTokenizer
from proteus.door.named import NamedRequests, StopRequest
from proteus.door.observed import Observed
from proteus.door.reply import DrawPiece, DrawReply, Listener, poll_s
from proteus.door.seats import Seats
from proteus.generation.task import Condition, DrawTask
from proteus.manifest import DrawManifest
from proteus.stages import Stopwatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A request at the door, and what is given back when it leaves."""

    call: Call
    listener: Listener
    held: AsyncExitStack
    watch: Stopwatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A request that the denoiser can have."""

    plan: DrawPlan
    tasks: Sequence[DrawTask]
    reservation: Reservation


class Draw:
    """The door of one deployment; holds what is admitted and waits, nothing of a request that ended."""

    def __init__(
        self, drawing: Drawing, manifest: DrawManifest, tokenizer: PromptTokenizer, fleet: DrawFleet, *, threads: int
    ) -> None:
        admission = drawing.limits.admission
        self._document_limit = document_limit(drawing.limits)
        self._preparation = DrawPreparation(drawing.limits, manifest, tokenizer, threads=threads)
        self._gate = Gate(admission)
        self._conditions = Conditions(fleet)
        self._counts = DrawCounts()
        self._studio = Studio(
            fleet=fleet,
            finishing=Finishing(fleet, manifest, self._counts, threads=threads),
            counts=self._counts,
            preview_places=asyncio.Semaphore(AT_ONCE),
        )
        self._seats = Seats(max_requests=_max_open(drawing), max_bytes=admission.max_open_bytes, table="draw.admission")
        self._named = NamedRequests()
        self.observed = Observed()

    @classmethod
    def from_deployment(cls, deployment: Deployment, fleet: DrawFleet) -> Draw:
        """Reads the checkpoint's tokenizers and the export's manifest; raises when they cannot be served."""
        drawing = deployment.drawing
        manifest = DrawManifest.load(deployment.repository_path)
        tokenizer = PromptTokenizer.from_checkpoint(drawing.checkpoint_path, manifest.text_inputs)
        return cls(drawing, manifest, tokenizer, fleet, threads=deployment.cores)

    def figures(self) -> DoorFigures:
        """What is held, waits, was refused and was drawn, for metrics."""
        return DoorFigures(
            admission=self._gate.snapshot(),
            open_requests=self._seats.taken,
            counts=self._counts,
            outcomes=self.observed.outcomes,
            unobserved=self.observed.dropped,
        )

    async def answer(self, call: Call, reply: DrawReply) -> None:
        """Send previews and pictures to `reply`, report last; raises ProteusError."""
        if StopRequest.is_one(call.document):
            call.ending.outcome = STOP
            reply.send(DrawPiece(report=self._named.answer(call, self._document_limit)))
            return
        watch = Stopwatch()
        with self._seats.take(call.num_bytes):
            async with AsyncExitStack() as held:
                listener = Listener(reply, lambda: poll_s(self._seats.taken))
                visit = Visit(call=call, listener=listener, held=held, watch=watch)
                ready = await listener.unless_gone(self._make_ready(visit))
                if ready is None:
                    call.ending.outcome = CANCELLED
                    reply.send(DrawPiece(report=LEFT_EARLY))
                else:
                    pictures = Pictures(self._studio, ready.plan, call.context, ready.reservation, reply, watch)
                    all_sent = await pictures.draw(ready.tasks, listener)
                    self._observe(visit, ready.plan, cancelled=not all_sent)

    def _observe(self, visit: Visit, plan: DrawPlan, *, cancelled: bool) -> None:
        size = f"{plan.wish.width_px}x{plan.wish.height_px}"
        stages_ms = visit.watch.report_ms()
        self.observed.drawn(visit.call.ending, size, plan.latency_class, stages_ms, cancelled=cancelled)

    async def _make_ready(self, visit: Visit) -> Ready:
        """Everything before the denoiser."""
        watch = visit.watch
        parsed = await self._preparation.parse(visit.call, watch)
        visit.held.enter_context(self._named.open(parsed.request, visit.listener.stop))
        plan = await self._preparation.plan(parsed, watch)
        with watch.stage("admission"):
            reservation = await visit.held.enter_async_context(self._gate.admitted(_ask(plan)))
        with watch.stage("condition"):
            prompt, negative = await self._conditions.of(plan, visit.call.context)
        reservation.shrink(replace(reservation.vector, text_tokens=0))
        return Ready(plan=plan, tasks=_tasks(plan, prompt, negative), reservation=reservation)


def _max_open(drawing: Drawing) -> int:
    admission, denoiser = drawing.limits.admission, drawing.denoiser
    waiting = sum(queue.max_queue for _, queue in admission.queues.named())
    return waiting + (admission.capacity.requests or denoiser.live_images + denoiser.max_queue)


def _ask(plan: DrawPlan) -> Ask:
    return Ask(
        vector=plan.resources,
        latency_class=plan.latency_class,
        tenant=plan.request.owner,
        model=DRAW.name,
        deadline_s=plan.deadline_s,
    )


def _tasks(plan: DrawPlan, prompt: Condition, negative: Condition | None) -> list[DrawTask]:
    """Every picture has a random name of its own."""
    return [
        DrawTask(
            request_key=secrets.token_bytes(REQUEST_KEY_BYTES),
            prompt=prompt,
            negative=negative,
            settings=settings,
            tenant=plan.request.owner,
            latency_class=plan.latency_class,
            deadline_s=plan.deadline_s,
        )
        for settings in plan.pictures
    ]
