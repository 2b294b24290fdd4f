"""A prompt in, pictures out, previews between; the way through the stages is in `proteus.door`."""

from __future__ import annotations

import asyncio
from typing import Any

from proteus.backend.draw_models import TritonDrawFleet
from proteus.backend.guard import Responses, responding
from proteus.backend.heartbeat import beat
from proteus.backend.metrics import Metrics
from proteus.backend.startup import load_deployment, loop_on_libuv
from proteus.backend.tensors import from_bytes, from_text, read_context, read_string
from proteus.backend.traced import TracedDrawFleet
from proteus.backend.watch import Watch
from proteus.contract import CHAT
from proteus.contract_draw import DRAW
from proteus.door.arrival import Call
from proteus.door.draw import Draw
from proteus.door.draw_figures import FIGURES
from proteus.door.observed import DRAW_HISTOGRAMS
from proteus.door.reply import DrawPiece
from proteus.manifest import DrawManifest


class Reply:
    def __init__(self, responses: Responses) -> None:
        self.is_cancelled = responses.is_cancelled
        self._responses = responses

    def send(self, piece: DrawPiece) -> None:
        arrays = {
            name: from_text(document)
            for name, document in (("event", piece.event), ("report", piece.report))
            if document is not None
        }
        if piece.image is not None:
            arrays["image"] = from_bytes(piece.image)
        self._responses.send(arrays, final=piece.report is not None)


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        loop_on_libuv()
        deployment = load_deployment(args)
        self.fleet = TritonDrawFleet(DrawManifest.load(deployment.repository_path))
        self.draw = Draw.from_deployment(deployment, TracedDrawFleet(self.fleet))
        self.metrics = Metrics(FIGURES)
        self.watch = Watch(DRAW.name, DRAW_HISTOGRAMS, tells_memory=CHAT.name not in deployment.models)
        self.heart: asyncio.Task[None] | None = None

    async def execute(self, requests: list[Any]) -> None:
        self.heart = self.heart or asyncio.create_task(beat(self.tell))
        await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request: Any) -> None:
        watched = self.watch.request(request, self.draw.observed)
        with responding(request) as responses, watched as (ending, trace):
            context = read_context(request, trace)
            call = Call(document=read_string(request, "request"), context=context, ending=ending)
            await self.draw.answer(call, Reply(responses))

    def tell(self) -> None:
        self.watch.tell(self.draw.observed)
        self.metrics.tell(self.draw.figures())

    def finalize(self) -> None:
        self.watch.close()
        self.fleet.close()
