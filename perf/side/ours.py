"""Ours: a server of the demo, asked by the package's own client over gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from perf.side import endless
from perf.side.asks import TOKENS, Ask
from perf.side.load import drive
from perf.side.turns import OURS, Answered, Turn
from proteus.client import AsyncClient, Piece
from proteus.launcher import Server

LOG = Path("var/perf-side.log")


class Ours:
    """LaunchFailed where the server does not start; what fails later ends the whole run."""

    name = OURS

    def __init__(self) -> None:
        self.versions = {name: version(name) for name in ("onnxruntime", "nvidia-pytriton", "tritonclient")}
        self.deployment = endless.deployment()
        self.end_token = endless.end_token(self.deployment)
        self._server = Server(self.deployment, log=LOG).start()

    @property
    def url(self) -> str:
        return self._server.ports.grpc_url

    @property
    def pid(self) -> int:
        return self._server.pid

    def take_turn(self, asks: Sequence[Ask], clients: int) -> Turn:
        return asyncio.run(self._drive(asks, clients))

    def end(self) -> None:
        self._server.stop()

    async def _drive(self, asks: Sequence[Ask], clients: int) -> Turn:
        async with AsyncClient(self.url) as client:
            return await drive(lambda ask: _answer(client, ask), asks, clients)


async def _answer(client: AsyncClient, ask: Ask) -> Answered:
    sent_s, ttft_s = time.perf_counter(), 0.0
    async for item in client.stream(ask.question, ask.picture, max_tokens=TOKENS):
        if isinstance(item, Piece):
            ttft_s = ttft_s or time.perf_counter() - sent_s
        else:
            answer = item
    return Answered(num_tokens=len(answer.token_ids), ttft_s=ttft_s, text=answer.text, ids=answer.token_ids)
