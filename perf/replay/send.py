"""Sends a trace in open loop: each request at its moment, whether or not others have been answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from perf.replay.pictures import picture_file, question, wish
from perf.replay.results import CANCELLED, OK, Result
from perf.replay.trace import ChatArrival, DrawArrival, Request, Trace, TracedPicture
from proteus.client import (
    Answer,
    AsyncClient,
    ClientError,
    ConnectionFailed,
    Drawing,
    InvalidInput,
    Piece,
    ServerError,
    TimedOut,
)
from proteus.cost.buckets import size_bucket

CODES: Mapping[type[ClientError], str] = {
    TimedOut: "timed_out",
    ConnectionFailed: "connection_failed",
    InvalidInput: "invalid_input",
}
SPUN_S = 0.002
WARM_SCOPE = "replay warms up"
Take = Callable[[Result], None]


@dataclass(slots=True)
class Counts:
    """Of requests, so far."""

    sent: int = 0
    done: int = 0
    errors: int = 0


@dataclass(slots=True)
class Heard:
    """What came of one answer."""

    first_s: float | None = None
    gaps_ms: list[float] = field(default_factory=list)
    last_s: dict[int, float] = field(default_factory=dict)  # by index of the answer
    report: dict[str, Any] = field(default_factory=dict)

    def add(self, piece: Piece, now_s: float) -> None:
        if not piece.token_ids:
            return
        self.first_s = now_s if self.first_s is None else self.first_s
        if (last_s := self.last_s.get(piece.index)) is not None:
            each_ms = round((now_s - last_s) * 1e3 / len(piece.token_ids), 3)
            self.gaps_ms += [each_ms] * len(piece.token_ids)
        self.last_s[piece.index] = now_s


class Sender:
    """One run. `take` gets the result of each request as it ends; `counts` may be read at any time."""

    def __init__(self, trace: Trace, take: Take, *, speed: float, timeout_s: float) -> None:
        self.counts = Counts()
        self._trace, self._take, self._speed, self._timeout_s = trace, take, speed, timeout_s
        self._files: dict[TracedPicture, bytes] = {}
        self._begin_s = 0.0

    def make_pictures(self, made: Callable[[int], None]) -> None:
        """Before the clock begins; `made` hears how many there are."""
        wanted = {picture for request in self._trace.requests for picture in getattr(request, "pictures", ())}
        for picture in sorted(wanted, key=lambda picture: picture.seed):
            self._files[picture] = picture_file(picture)
            made(len(self._files))

    async def run(self, url: str) -> None:
        async with AsyncClient(url) as client:
            await self._warm_up(client)
            self._begin_s = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for line, request in enumerate(self._trace.requests, start=1):
                    await self._until(request.arrival_s / self._speed)
                    group.create_task(self._ask(client, line, request))

    async def _until(self, moment_s: float) -> None:
        """The event loop sleeps whole milliseconds, rounded up: the last one is not slept."""
        while (left_s := moment_s - self._now_s()) > 0:
            await asyncio.sleep(max(0.0, left_s - SPUN_S))

    async def _warm_up(self, client: AsyncClient) -> None:
        """The first of each kind, sent once more than the trace says, to a scope of its own; failures come later."""
        firsts = {request.modality: request for request in reversed(self._trace.requests)}
        for request in firsts.values():
            scoped = request.model_copy(update={"cache_scope": WARM_SCOPE, "tenant": WARM_SCOPE})
            try:
                async for _ in self._stream(client, scoped):
                    pass
            except ServerError:
                pass

    async def _ask(self, client: AsyncClient, line: int, request: Request) -> None:
        heard, sent_s, error = Heard(), self._now_s(), None
        self.counts.sent += 1
        try:
            async with asyncio.timeout(request.cancel_after_s):
                outcome = await self._listen(client, request, heard)
        except TimeoutError:
            outcome = CANCELLED
        except ServerError as refusal:
            outcome, error = refusal.code, str(refusal)
        except ClientError as failure:
            outcome, error = CODES[type(failure)], str(failure)
        self.counts.done += 1
        self.counts.errors += error is not None
        self._take(
            Result(
                arrival_s=round(request.arrival_s / self._speed, 6),
                sent_s=round(sent_s, 6),
                end_s=round(self._now_s(), 6),
                line=line,
                modality=request.modality,
                size=size_of(request),
                tenant=request.tenant,
                session=request.session,
                latency_class=request.latency_class,
                first_s=None if heard.first_s is None else round(heard.first_s, 6),
                gaps_ms=tuple(heard.gaps_ms),
                outcome=outcome,
                error=error,
                **heard.report,
            )
        )

    async def _listen(self, client: AsyncClient, request: Request, heard: Heard) -> str:
        """The outcome."""
        async for item in self._stream(client, request):
            if isinstance(item, Piece):
                heard.add(item, self._now_s())
            elif isinstance(item, Answer | Drawing):
                heard.report = told(item)
        return CANCELLED if heard.report["finish_reason"] == CANCELLED else OK

    def _stream(self, client: AsyncClient, request: Request) -> AsyncIterator[Any]:
        asked: dict[str, Any] = {
            "tenant": request.tenant,
            "cache_scope": request.cache_scope,
            "latency_class": request.latency_class,
            "n": request.n,
            "timeout_s": self._timeout_s,
        }
        if request.deadline_ms is not None:
            asked["deadline_ms"] = request.deadline_ms
        if isinstance(request, DrawArrival):
            drawn: dict[str, Any] = {"size": request.size, "steps": request.steps, "guidance": request.guidance}
            return client.stream_draw(wish(request.text_seed), seed=request.text_seed, **drawn, **asked)
        length: dict[str, Any] = {"max_tokens": request.max_tokens, "min_tokens": request.max_tokens}
        files = [self._files[picture] for picture in request.pictures]
        return client.stream_chat(messages(request), files, **length, **asked)

    def _now_s(self) -> float:
        return time.monotonic() - self._begin_s


def messages(request: ChatArrival) -> list[dict[str, Any]]:
    """One user message: the pictures, each with its tier, then the question."""
    pictures = [{"type": "image", "detail": picture.tier} for picture in request.pictures]
    text = {"type": "text", "text": question(request.text_seed, request.text_tokens)}
    return [{"role": "user", "content": [*pictures, text]}]


def size_of(request: Request) -> str | None:
    """From the trace, not from the report: who is refused has a size as well."""
    if isinstance(request, DrawArrival):
        return request.size
    return size_bucket(max(picture.pixels for picture in request.pictures)) if request.pictures else None


def told(item: Answer | Drawing) -> dict[str, Any]:
    """What the report said, as plain values."""
    heard: dict[str, Any] = {"finish_reason": item.finish_reason, "usage": asdict(item.usage)}
    heard["stages_ms"] = dict(item.stages_ms)
    if isinstance(item, Answer):
        heard |= {"ttft_ms": item.ttft_ms, "ingress_ms": item.ingress_ms, "caches": item.caches, "media": item.media}
    return heard
