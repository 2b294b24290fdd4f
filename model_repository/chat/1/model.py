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
from proteus.backend.startup import load_deployment
from proteus.backend.tensors import from_text, read, read_bytes, read_context, read_string
from proteus.door.arrival import Call
from proteus.door.chat import Chat
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


def read_call(request: Any, limits: ImageLimits) -> Call:
    attached = split(read_bytes(request, "image_bytes") or b"", read(request, "image_lengths"), limits)
    return Call(document=read_string(request, "request"), attached=attached, context=read_context(request))


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.fleet = TritonFleet()
        deployment = load_deployment(args)
        self.limits = deployment.image
        self.chat = Chat.from_deployment(deployment, self.fleet)
        self.metrics = Metrics(FIGURES)
        self.heart: asyncio.Task[None] | None = None

    async def execute(self, requests: list[Any]) -> None:
        self.heart = self.heart or asyncio.create_task(beat(self.tell))
        await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request: Any) -> None:
        with responding(request) as responses:
            await self.chat.answer(read_call(request, self.limits), Reply(responses))

    def tell(self) -> None:
        self.metrics.tell(self.chat.figures())

    def finalize(self) -> None:
        self.fleet.close()
