"""One conversation through the stages: prepare, encode the pictures, generate, report.

    bytes → request.ChatRequest → pictures.Picture → language.Prompt → image_tokens (shared, cached) → llm → pieces

A prompt that does not fit is refused before any picture is encoded.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from proteus.backend.fleet import Context, Fleet, LlmCall, LlmEnd
from proteus.cache.key import PictureKeyFields, picture_key
from proteus.cache.single_flight import SingleFlight
from proteus.contract import VISUAL_TOKENS
from proteus.deployment import Deployment
from proteus.door.pictures import Picture, collect
from proteus.door.request import ChatRequest, PictureContent, shorten
from proteus.errors import InternalError, InvalidRequest, MediaTooLarge, PromptTooLong, ProteusError, QueueFull
from proteus.families.llava import LlavaFamily
from proteus.language.messages import Message, PicturePart, TextPart
from proteus.language.prompt import Prompt, PromptRenderer
from proteus.manifest import Manifest
from proteus.preprocess.pixels import POLICY
from proteus.stages import Stopwatch

CANCEL_POLL_S = 0.1
Source = Literal["encoded", "cached", "shared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    document: bytes  # the request document
    attached: tuple[bytes, ...]  # pictures beside it
    context: Context


class Reply(Protocol):
    """Where the answer goes; `report` comes with the last piece and ends it."""

    def send(self, text: str, token_ids: Sequence[int], report: str | None) -> None: ...

    def is_cancelled(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request that fits: everything known before any picture is encoded."""

    request: ChatRequest
    pictures: tuple[Picture, ...]  # in the order of the prompt's spans
    prompt: Prompt
    max_tokens: int


@dataclass(frozen=True, slots=True)
class VisualTokens:
    rows: npt.NDArray[np.float32]  # (N, D)
    source: Source


class Chat:
    """The door of one deployment; holds the seats and the pictures being encoded, nothing of a request that ended."""

    def __init__(
        self, deployment: Deployment, manifest: Manifest, family: LlavaFamily, renderer: PromptRenderer, fleet: Fleet
    ) -> None:
        self._deployment = deployment
        self._manifest = manifest
        self._family = family
        self._renderer = renderer
        self._fleet = fleet
        self._encoding = SingleFlight[bytes, VisualTokens](shared_errors=(InvalidRequest, MediaTooLarge))
        self._threads = ThreadPoolExecutor(deployment.cores, thread_name_prefix="prepare")
        self._open = 0

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

    async def answer(self, call: Call, reply: Reply) -> None:
        """Stream the answer to `reply`, report last; raises ProteusError."""
        with self._seat():
            watch = Stopwatch()
            prepared = await asyncio.get_running_loop().run_in_executor(self._threads, self._prepare, call, watch)
            with watch.stage("encode"):
                encoded = await self._encode(prepared, call.context)
            await self._generate(prepared, encoded, call.context, reply, watch)

    @contextmanager
    def _seat(self) -> Iterator[None]:
        limit = self._deployment.admission.capacity.requests or 64
        if self._open >= limit:
            raise QueueFull(
                f"{self._open} requests are open",
                limit=f"[admission.capacity] requests = {limit}",
            )
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def _prepare(self, call: Call, watch: Stopwatch) -> Prepared:
        with watch.stage("parse"):
            _refuse_parameters(call.context)
            request = ChatRequest.parse(call.document, self._deployment.text)
        with watch.stage("plan"):
            pictures = collect(request.messages, call.attached, self._deployment.image)
        with watch.stage("prompt"):
            prompt = self._renderer.render(_messages(request), [self._family.visual_tokens] * len(pictures))
        return Prepared(request=request, pictures=pictures, prompt=prompt, max_tokens=self._max_tokens(request, prompt))

    def _max_tokens(self, request: ChatRequest, prompt: Prompt) -> int:
        context_tokens = self._deployment.llm.context_tokens
        room = context_tokens - len(prompt.input_ids)
        wanted = request.max_tokens or 1
        if wanted > room:
            answer = f" and max_tokens = {wanted}" if room >= 1 else ""
            raise PromptTooLong(
                f"the prompt has {len(prompt.input_ids)} tokens, {prompt.visual_tokens} of them visual{answer}",
                limit=f"[llm] context_tokens = {context_tokens} for prompt and answer",
                fix=f"lower max_tokens to {room}" if room >= 1 else "send less text or fewer pictures",
            )
        return request.max_tokens or min(self._deployment.text.default_max_tokens, room)

    async def _encode(self, prepared: Prepared, context: Context) -> Mapping[bytes, VisualTokens]:
        """Visual tokens of each distinct picture, by digest, all at once."""
        distinct = {picture.digest: picture for picture in prepared.pictures}
        scope = prepared.request.cache_scope
        tokens = await asyncio.gather(*(self._encode_shared(picture, scope, context) for picture in distinct.values()))
        return dict(zip(distinct, tokens, strict=True))

    async def _encode_shared(self, picture: Picture, cache_scope: str, context: Context) -> VisualTokens:
        fields = PictureKeyFields(
            cache_scope=cache_scope,
            revision=self._manifest.revision,
            policy=POLICY,
            plan=f"{self._family.image_size_px} px, {self._family.visual_tokens} visual tokens",
            dtype=VISUAL_TOKENS.dtype,
            media_digest=picture.digest,
        )
        landing = await self._encoding.run(picture_key(fields), lambda: self._encode_checked(picture, fields, context))
        return replace(landing.value, source="shared") if landing.shared else landing.value

    async def _encode_checked(self, picture: Picture, fields: PictureKeyFields, context: Context) -> VisualTokens:
        """Ask for the picture's tokens; an answer made for another key is a collision, and asked for anew."""
        for salt in (b"", secrets.token_bytes(16)):
            key = picture_key(replace(fields, salt=salt))
            asked_at_ns = time.monotonic_ns()
            encoded = await self._fleet.image_tokens(picture.data, key, context)
            if encoded.key_echo == key:
                source: Source = "cached" if encoded.made_at_ns < asked_at_ns else "encoded"
                return VisualTokens(encoded.visual_tokens, source)
        raise InternalError

    async def _generate(
        self,
        prepared: Prepared,
        encoded: Mapping[bytes, VisualTokens],
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
                await asyncio.sleep(CANCEL_POLL_S)
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


def _refuse_parameters(context: Context) -> None:
    if context.parameters:
        names = shorten(", ".join(sorted(context.parameters)))
        raise InvalidRequest(
            f"unknown request parameter {names}", fix='put every field into the JSON document of the input "request"'
        )


def _messages(request: ChatRequest) -> list[Message]:
    """The conversation in the language room's words; pictures numbered in order."""
    messages, pictures = [], 0
    for message in request.messages:
        parts: list[TextPart | PicturePart] = []
        for part in message.parts():
            if isinstance(part, PictureContent):
                parts.append(PicturePart(pictures))
                pictures += 1
            else:
                parts.append(TextPart(part.text))
        messages.append(Message(message.role, tuple(parts)))
    return messages


def _llm_call(prepared: Prepared, encoded: Mapping[bytes, VisualTokens]) -> LlmCall:
    rows = [encoded[picture.digest].rows for picture in prepared.pictures]
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
    prepared: Prepared, encoded: Mapping[bytes, VisualTokens], end: LlmEnd, output_tokens: int, watch: Stopwatch
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
