"""A conversation with pictures in, streamed text out; the way through the stages is in `proteus.door`."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from proteus.admission.figures import FIGURES
from proteus.backend.guard import Responses, responding
from proteus.backend.heartbeat import beat
from proteus.backend.metrics import Metrics
from proteus.backend.models import TritonFleet
from proteus.backend.spans import Trace
from proteus.backend.startup import hardware_of, load_deployment, loop_on_libuv
from proteus.backend.tensors import from_text, read, read_bytes, read_context, read_string
from proteus.backend.traced import TracedFleet
from proteus.backend.watch import Watch
from proteus.cache.figures import ENCODER_CACHE_FIGURES
from proteus.contract import CHAT
from proteus.door.arrival import Call, Ending
from proteus.door.chat import Chat
from proteus.door.observed import HISTOGRAMS
from proteus.door.pictures import split
from proteus.door.reply import Piece
from proteus.limits import ImageLimits


class Reply:
    def __init__(self, responses: Responses) -> None:
        self.is_cancelled = responses.is_cancelled
        self._responses = responses

    def send(self, piece: Piece) -> None:
        arrays = {
            "text": from_text(piece.text),
            "token_ids": np.array(piece.token_ids, dtype=np.int32),
            "index": np.array([piece.index], dtype=np.int32),
        }
        for name, document in (("logprobs", piece.logprobs), ("report", piece.report)):
            if document is not None:
                arrays[name] = from_text(document)
        self._responses.send(arrays, final=piece.report is not None)


def read_call(request: Any, limits: ImageLimits, ending: Ending, trace: Trace | None) -> Call:
    attached = split(read_bytes(request, "image_bytes") or b"", read(request, "image_lengths"), limits)
    context = read_context(request, trace)
    return Call(document=read_string(request, "request"), attached=attached, context=context, ending=ending)


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        loop_on_libuv()
        deployment = load_deployment(args)
        self.fleet = TritonFleet.of(deployment, hardware_of(args))
        self.limits = deployment.image
        self.chat = Chat.from_deployment(deployment, TracedFleet(self.fleet))
        figures = (FIGURES, self.chat.figures), (ENCODER_CACHE_FIGURES, self.chat.cache_figures), *self.fleet.figures()
        self.told = [(Metrics(rows), values) for rows, values in figures]
        self.watch = Watch(CHAT.name, HISTOGRAMS, tells_memory=True)
        self.heart: asyncio.Task[None] | None = None

    async def execute(self, requests: list[Any]) -> None:
        self.heart = self.heart or asyncio.create_task(beat(self.tell))
        await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request: Any) -> None:
        with responding(request) as responses, self.watch.request(request, self.chat.observed) as (ending, trace):
            await self.chat.answer(read_call(request, self.limits, ending, trace), Reply(responses))

    def tell(self) -> None:
        self.watch.tell(self.chat.observed)
        for metrics, figures in self.told:
            metrics.tell(figures())

    def finalize(self) -> None:
        for part in (self.watch, self.chat, self.fleet):
            part.close()
