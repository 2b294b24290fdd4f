"""A call to a request that is known to the last token: parsed, fetched, planned, rendered. Nothing is decoded here.

Call → ChatRequest → Source → (Fetcher) → Picture → Planner → MediaCost → Prompt → Prepared
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from proteus.clock import clock_name
from proteus.cost.planner import MediaCost, Planner
from proteus.cost.vector import ResourceVector
from proteus.deployment import Deployment
from proteus.door.arrival import Call, in_thread
from proteus.door.deadline import before
from proteus.door.pictures import Picture, Source, read, sources
from proteus.door.request import AnyPicture, ChatRequest
from proteus.door.seats import Seat
from proteus.door.together import together
from proteus.errors import InvalidRequest, PromptTooLong, ProteusError
from proteus.language.messages import Message, PicturePart, TextPart
from proteus.language.prompt import Prompt, PromptRenderer
from proteus.limits import LatencyClass
from proteus.media.fetch import Fetcher
from proteus.stages import Timeline

# Done at once: 0.1 to 0.7 ms, as much as waking a thread and then the loop takes.
INLINE_BYTES, INLINE_TEXT_CHARS = 4_096, 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The document read, nothing fetched."""

    request: ChatRequest
    places: tuple[Source, ...]  # of its pictures, in the order of the prompt's spans
    deadline_s: float | None  # to be started, on the monotonic clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything known before any picture is decoded."""

    request: ChatRequest
    pictures: tuple[Picture, ...]  # in the order of the prompt's spans
    costs: tuple[MediaCost, ...]  # of the pictures
    prompt: Prompt
    max_tokens: int
    resources: ResourceVector
    deadline_s: float | None  # to be started, on the monotonic clock

    @property
    def latency_class(self) -> LatencyClass:
        """Those who can wait, else by whether an encoder is needed."""
        if self.request.latency_class == "batch":
            return "batch"
        return "media" if self.pictures else "text"


class Preparation:
    """Works in threads of its own, so that the door's event loop stays free; on small requests, at once.

    Requests with media have threads apart, as many as cores: to read and digest some megabytes takes longer than all
    that is done for text, which would wait behind it.
    """

    def __init__(
        self,
        deployment: Deployment,
        planner: Planner,
        renderer: PromptRenderer,
        fetcher: Fetcher,
        *,
        vocab_size: int,
    ) -> None:
        self._deployment, self._planner = deployment, planner
        self._renderer, self._fetcher = renderer, fetcher
        self._vocab_size = vocab_size
        self._for_text = ThreadPoolExecutor(deployment.cores, thread_name_prefix="prepare_text")
        self._for_media = ThreadPoolExecutor(deployment.cores, thread_name_prefix="prepare_media")

    async def parse(self, call: Call, timeline: Timeline) -> Parsed:
        """Raises InvalidRequest and MediaTooLarge."""
        if call.num_bytes <= INLINE_BYTES:
            return self._parse(call, timeline)
        threads = self._for_media if call.num_bytes > self._deployment.text.max_text_bytes else self._for_text
        return await in_thread(threads, lambda: self._parse(call, timeline))

    async def prepare(self, parsed: Parsed, seat: Seat, timeline: Timeline) -> Prepared:
        """`seat` is told of the bytes that URLs may bring before they are fetched.

        Raises InvalidRequest and what it is the root of, MediaTooLarge, QueueFull, or DeadlineExceeded.
        """
        fetched = await self._fetched(parsed, seat, timeline)
        if _is_small(parsed):
            return self._plan(parsed, (), timeline)
        return await in_thread(
            self._threads(parsed), lambda: self._plan(parsed, self._read(parsed, fetched, timeline), timeline)
        )

    async def pictures(self, parsed: Parsed, seat: Seat, timeline: Timeline) -> tuple[Picture, ...]:
        """The first half of `prepare`: which tiers they are to have may be decided when their sizes are known."""
        fetched = await self._fetched(parsed, seat, timeline)
        return await in_thread(self._threads(parsed), lambda: self._read(parsed, fetched, timeline))

    async def planned(self, parsed: Parsed, pictures: tuple[Picture, ...], timeline: Timeline) -> Prepared:
        """The other half."""
        if _is_small(parsed):
            return self._plan(parsed, pictures, timeline)
        return await in_thread(self._threads(parsed), lambda: self._plan(parsed, pictures, timeline))

    def looked_at(self, request: ChatRequest, attached: Sequence[bytes], deadline_s: float | None) -> Parsed:
        """A document with the pictures beside it; raises InvalidRequest and MediaTooLarge."""
        _check_ids(request, self._vocab_size)
        places = sources(request.messages, attached, self._deployment.image)
        return Parsed(request=request, places=places, deadline_s=deadline_s)

    def _parse(self, call: Call, timeline: Timeline) -> Parsed:
        with timeline.ingress("parse"):
            call.refuse_parameters()
            request = ChatRequest.parse(call.document, self._deployment.text)
            if request.sent is not None and request.sent.clock == clock_name():
                timeline.sent(request.sent.ns)
            return self.looked_at(request, call.attached, call.deadline_s(request, timeline.start_s))

    async def _fetched(self, parsed: Parsed, seat: Seat, timeline: Timeline) -> Mapping[str, bytes]:
        numbers = _first_of_each_url(parsed.places)
        if not numbers:
            return {}
        seat.hold(len(numbers) * self._deployment.image.max_bytes)
        with timeline.ingress("fetch"):
            return await self._fetch(numbers, parsed.deadline_s)

    async def _fetch(self, numbers: Mapping[str, int], deadline_s: float | None) -> Mapping[str, bytes]:
        """Each URL once, all at the same time; the first that fails ends the others, and so does the deadline."""
        fix = "allow more time, or send the pictures' bytes"
        async with before(deadline_s, doing="its pictures were on their way", fix=fix):
            bodies = await together(self._fetch_named(url, number) for url, number in numbers.items())
        return dict(zip(numbers, bodies, strict=True))

    async def _fetch_named(self, url: str, number: int) -> bytes:
        try:
            return await self._fetcher.fetch(url)
        except ProteusError as error:
            raise error.about(f"picture {number}") from error

    def _threads(self, parsed: Parsed) -> ThreadPoolExecutor:
        return self._for_media if parsed.places else self._for_text

    def _read(self, parsed: Parsed, fetched: Mapping[str, bytes], timeline: Timeline) -> tuple[Picture, ...]:
        if not parsed.places:
            return ()
        with timeline.ingress("plan"):
            numbered = enumerate(parsed.places, start=1)
            return tuple(read(place, number, fetched, self._deployment.image) for number, place in numbered)

    def _plan(self, parsed: Parsed, pictures: tuple[Picture, ...], timeline: Timeline) -> Prepared:
        request = parsed.request
        with timeline.ingress("plan"):
            costs = tuple(self._cost(picture, number, len(pictures)) for number, picture in enumerate(pictures, 1))
        with timeline.ingress("prompt"):
            prompt = self._renderer.render(_messages(request), [cost.plan.visual_tokens for cost in costs])
        max_tokens = self._max_tokens(request, prompt)
        text = self._planner.text(prompt.text_tokens, max_tokens)
        return Prepared(
            request=request,
            pictures=pictures,
            costs=costs,
            prompt=prompt,
            max_tokens=max_tokens,
            resources=_of_all_answers(sum((cost.resources for cost in costs), text), request.n),
            deadline_s=parsed.deadline_s,
        )

    def _cost(self, picture: Picture, number: int, num_pictures: int) -> MediaCost:
        try:
            return self._planner.picture(
                picture.header, picture.num_bytes, tier=picture.tier, images_in_request=num_pictures
            )
        except ProteusError as error:
            raise error.about(f"picture {number}") from error

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
        max_tokens = request.max_tokens or min(self._deployment.text.default_max_tokens, room)
        if request.min_tokens > max_tokens:
            raise InvalidRequest(
                f"min_tokens = {request.min_tokens}", limit=f"max_tokens = {max_tokens}", fix="lower min_tokens"
            )
        return max_tokens


def _is_small(parsed: Parsed) -> bool:
    """Whether it is planned in the thread that asks."""
    texts = (text for message in parsed.request.messages for text in message.texts())
    return not parsed.places and sum(map(len, texts)) <= INLINE_TEXT_CHARS


def _of_all_answers(one: ResourceVector, n: int) -> ResourceVector:
    """Pictures are encoded once; each answer has a place, and keys and values, of its own."""
    if n == 1:
        return one
    return replace(
        one,
        requests=n * one.requests,
        output_tokens=n * one.output_tokens,
        kv_bytes=n * one.kv_bytes,
        cross_kv_bytes=n * one.cross_kv_bytes,
    )


def _check_ids(request: ChatRequest, vocab_size: int) -> None:
    for token_id in request.logit_bias:
        if int(token_id) >= vocab_size:
            raise InvalidRequest(
                f"logit_bias names the id {token_id}",
                limit=f"0 to {vocab_size - 1:,}, the checkpoint's vocabulary",
                fix="use ids of the checkpoint's tokenizer",
            )


def _first_of_each_url(places: Sequence[Source]) -> Mapping[str, int]:
    """URL -> number of the first picture (from 1) that is there."""
    numbers: dict[str, int] = {}
    for number, place in enumerate(places, start=1):
        if place.url is not None:
            numbers.setdefault(place.url, number)
    return numbers


def _messages(request: ChatRequest) -> list[Message]:
    """The conversation in the language room's words; pictures numbered in order."""
    messages, pictures = [], 0
    for message in request.messages:
        parts: list[TextPart | PicturePart] = []
        for part in message.parts():
            if isinstance(part, AnyPicture):
                parts.append(PicturePart(pictures))
                pictures += 1
            else:
                parts.append(TextPart(part.text))
        messages.append(Message(message.role, tuple(parts)))
    return messages
