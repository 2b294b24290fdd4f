"""The request document of `chat`: JSON bytes to typed fields; every mistake is named with its field, value and fix."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag

from proteus.door.document import MAX_WHOLE, Asked, DocumentLimit, Part, check, parse
from proteus.errors import InvalidRequest
from proteus.language.sampling import MAX_BIASES, Bias, IdAsText, Penalty
from proteus.limits import TextLimits, TierName

MAX_TOP_LOGPROBS = 20
MAX_CLOCK_CHARS = 64


class TextContent(Part):
    type: Literal["text"]
    text: str


class PictureContent(Part):
    """The next picture of `image_bytes`, or, with `data`, one in base64 or a data URI."""

    type: Literal["image"]
    data: str | None = None
    detail: TierName = "auto"


class PictureUrl(Part):
    url: Annotated[str, Field(min_length=1)]  # http(s) where the contract allows the host, or a data URI
    detail: TierName = "auto"


class PictureUrlContent(Part):
    """A picture as OpenAI's clients send it."""

    type: Literal["image_url"]
    image_url: PictureUrl


AnyPicture = PictureContent | PictureUrlContent
AnyContent = TextContent | PictureContent | PictureUrlContent
# Lists end at their first mistake: a document of a million mistakes is as cheap to refuse as one of a single mistake.
Parts = Annotated[list[Annotated[AnyContent, Field(discriminator="type")]], Field(fail_fast=True)]
Content = Annotated[
    Annotated[str, Tag("text")] | Annotated[Parts, Tag("parts")],
    Discriminator(lambda value: "parts" if isinstance(value, list) else "text"),
]


class ChatMessage(Part):
    role: Literal["system", "user", "assistant"]
    content: Content

    def parts(self) -> list[AnyContent]:
        """The content as parts, in order."""
        return [TextContent(type="text", text=self.content)] if isinstance(self.content, str) else list(self.content)

    def texts(self) -> list[str]:
        """Of its text parts, in order."""
        if isinstance(self.content, str):
            return [self.content]
        return [part.text for part in self.content if isinstance(part, TextContent)]

    def pictures(self) -> list[AnyPicture]:
        """Its picture parts, in order."""
        if isinstance(self.content, str):
            return []
        return [part for part in self.content if isinstance(part, AnyPicture)]


class Sent(Part):
    """When the client sent the request, by the clock of its machine: `proteus.clock` names it and reads it."""

    clock: Annotated[str, Field(max_length=MAX_CLOCK_CHARS)]
    ns: Annotated[int, Field(ge=0, lt=MAX_WHOLE)]


class ChatRequest(Asked):
    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_tokens: Annotated[int, Field(ge=1, lt=MAX_WHOLE)] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=MAX_WHOLE)] = 0
    n: Annotated[int, Field(ge=1, lt=MAX_WHOLE)] = 1  # answers
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, lt=MAX_WHOLE)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    # Made by a factory: a default that can be changed is copied deeply for each request.
    logit_bias: Annotated[dict[IdAsText, Bias], Field(max_length=MAX_BIASES)] = Field(default_factory=dict)  # by id
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] = 0
    seed: Annotated[int, Field(ge=0, lt=MAX_WHOLE)] | None = None
    stop: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    sent: Sent | None = None

    @classmethod
    def parse(cls, document: bytes, limits: TextLimits) -> Self:
        """Raises InvalidRequest naming the field, its value, the limit and the fix."""
        request = parse(cls, document, document_limit(limits))
        request.check(limits)
        return request

    @classmethod
    def of(cls, document: object, limits: TextLimits) -> Self:
        """The same of a document whose JSON is read already, whatever its size. Raises InvalidRequest."""
        request = check(cls, document)
        request.check(limits)
        return request

    def check(self, limits: TextLimits) -> None:
        """Whether it is within the contract; raises InvalidRequest."""
        self._check_fields(limits)
        self._check_messages(limits)

    def _check_fields(self, limits: TextLimits) -> None:
        if self.n > limits.max_choices:
            raise InvalidRequest(f"n = {self.n:,}", limit=f"[text] max_choices = {limits.max_choices}", fix="lower n")
        _at_most("stop strings", len(self.stop), "max_stop_strings", limits.max_stop_strings)
        for stop in self.stop:
            _at_most("bytes in a stop string", len(stop.encode()), "max_stop_bytes", limits.max_stop_bytes)
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest(
                f"top_logprobs = {self.top_logprobs}", limit="0 without logprobs", fix='send "logprobs": true as well'
            )

    def _check_messages(self, limits: TextLimits) -> None:
        _at_most("messages", len(self.messages), "max_messages", limits.max_messages)
        num_parts = sum(1 if isinstance(message.content, str) else len(message.content) for message in self.messages)
        _at_most("parts", num_parts, "max_parts", limits.max_parts)
        if self.messages[-1].role != "user":
            raise InvalidRequest(
                f"the last message is the {self.messages[-1].role}'s", fix="end the conversation with a user message"
            )
        text_bytes = 0
        for index, message in enumerate(self.messages):
            texts, pictures = message.texts(), message.pictures()
            text_bytes += sum(len(text.encode()) for text in texts)
            if not pictures and not any(texts):
                raise InvalidRequest(f"messages[{index}].content is empty", fix="add text or a picture")
            if pictures and message.role != "user":
                raise InvalidRequest(
                    f"messages[{index}] is the {message.role}'s and holds a picture",
                    fix="move the picture to a user message",
                )
        _at_most("bytes of text", text_bytes, "max_text_bytes", limits.max_text_bytes)


def document_limit(limits: TextLimits) -> DocumentLimit:
    return DocumentLimit(
        key="[text] max_request_bytes",
        max_bytes=limits.max_request_bytes,
        fix="send pictures in image_bytes instead of base64, or a shorter conversation",
    )


def _at_most(what: str, count: int, key: str, limit: int) -> None:
    if count > limit:
        raise InvalidRequest(f"{count:,} {what}", limit=f"[text] {key} = {limit:,}", fix="send less")
