"""The request document: JSON bytes to typed fields; every mistake is named with its field, value and fix."""

from __future__ import annotations

import json
from typing import Annotated, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from proteus.errors import InvalidRequest
from proteus.language.sampling import MAX_BIASES, Bias, IdAsText, Penalty
from proteus.limits import TextLimits, TierName

MAX_ECHO_CHARS = 120  # of what a client sent, repeated in an error
MAX_WHOLE = 2**63  # no field means anything above; longer numbers have no place in a float, nor in an error
MAX_REQUEST_ID_CHARS = 128
MAX_TOP_LOGPROBS = 20
MAX_MISTAKES = 100  # that are listed: to list a million stops every other request for seconds
KNOWN_PARTS = "text, image, image_url"
FIXES = {
    "extra_forbidden": "remove the field or correct its spelling; docs/contract.md lists every field",
    "missing": "add the field",
}


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


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


def printable(text: str) -> str:
    """`text`, which may stand in a log; raises ValueError."""
    if not text.isprintable():
        raise ValueError("every character must be printable")
    return text


class ChatMessage(Part):
    role: Literal["system", "user", "assistant"]
    content: Content

    def parts(self) -> list[AnyContent]:
        """The content as parts, in order."""
        return [TextContent(type="text", text=self.content)] if isinstance(self.content, str) else list(self.content)


RequestId = Annotated[str, Field(min_length=1, max_length=MAX_REQUEST_ID_CHARS), AfterValidator(printable)]
Parsed = TypeVar("Parsed", bound=BaseModel)


class ChatRequest(Part):
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
    logit_bias: Annotated[dict[IdAsText, Bias], Field(max_length=MAX_BIASES)] = {}  # by token id
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] = 0
    seed: Annotated[int, Field(ge=0, lt=MAX_WHOLE)] | None = None
    stop: list[Annotated[str, Field(min_length=1)]] = []
    request_id: RequestId | None = None  # by which it can be stopped
    cache_scope: str = ""
    tenant: str = ""  # whose share of the capacity it is; shares are fair between tenants
    latency_class: Literal["interactive", "batch"] = "interactive"
    deadline_ms: Annotated[int, Field(ge=1, lt=MAX_WHOLE)] | None = None  # to be admitted, from arrival

    @classmethod
    def parse(cls, document: bytes, limits: TextLimits) -> Self:
        """Raises InvalidRequest naming the field, its value, the limit and the fix."""
        request = parse(cls, document, limits)
        request._check(limits)
        return request

    @property
    def owner(self) -> str:
        """The tenant; who names none is known by the cache scope."""
        return self.tenant or self.cache_scope

    def _check(self, limits: TextLimits) -> None:
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
            parts = message.parts()
            text_bytes += sum(len(part.text.encode()) for part in parts if isinstance(part, TextContent))
            if not any(isinstance(part, AnyPicture) or part.text for part in parts):
                raise InvalidRequest(f"messages[{index}].content is empty", fix="add text or a picture")
            if message.role != "user" and any(isinstance(part, AnyPicture) for part in parts):
                raise InvalidRequest(
                    f"messages[{index}] is the {message.role}'s and holds a picture",
                    fix="move the picture to a user message",
                )
        _at_most("bytes of text", text_bytes, "max_text_bytes", limits.max_text_bytes)


def parse(kind: type[Parsed], document: bytes, limits: TextLimits) -> Parsed:
    """A document of this kind; raises InvalidRequest."""
    if len(document) > limits.max_request_bytes:
        raise InvalidRequest(
            f"the request document has {len(document):,} bytes",
            limit=f"[text] max_request_bytes = {limits.max_request_bytes:,}",
            fix="send pictures in image_bytes instead of base64, or a shorter conversation",
        )
    try:
        text = document.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the request document is not UTF-8 (byte {error.start})", fix="encode the JSON document as UTF-8"
        ) from error
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise _translate(error) from error


def _at_most(what: str, count: int, key: str, limit: int) -> None:
    if count > limit:
        raise InvalidRequest(f"{count:,} {what}", limit=f"[text] {key} = {limit:,}", fix="send less")


def _translate(error: ValidationError) -> InvalidRequest:
    """The first mistake, and how many more there are."""
    if error.error_count() > MAX_MISTAKES:
        return InvalidRequest(
            f"the request document has {error.error_count():,} mistakes",
            fix="correct it; docs/contract.md lists every field",
        )
    first, *others = error.errors(include_url=False)
    more = f" (and {len(others)} more)" if others else ""
    kind = first["type"]
    if kind == "json_invalid":
        return InvalidRequest(f"the request is not JSON: {first['ctx']['error']}", fix="send one JSON object")
    field = shorten(_path(first["loc"]))
    if kind == "union_tag_not_found":
        return InvalidRequest(f"{field}.type is missing{more}", limit=f"known are {KNOWN_PARTS}", fix=FIXES["missing"])
    if kind == "union_tag_invalid":
        what = f"{field}.type = {shorten(json.dumps(first['input'].get('type'), default=str))}{more}"
        return InvalidRequest(what, limit=f"known are {KNOWN_PARTS}", fix="correct the value")
    if kind == "missing":
        return InvalidRequest(f"{field} is missing{more}", fix=FIXES[kind])
    if kind == "extra_forbidden":
        return InvalidRequest(f"unknown field {field}{more}", fix=FIXES[kind])
    if first["loc"][2:] == ("[key]",):  # an id of logit_bias
        name = shorten(json.dumps(first["input"]))
        return InvalidRequest(
            f"logit_bias names {name}{more}", limit="a token id in decimal digits", fix="correct the id"
        )
    if kind == "too_long" and field == "logit_bias":
        return InvalidRequest(
            f"logit_bias names {len(first['input']):,} ids{more}", limit=f"{MAX_BIASES:,} ids", fix="send less"
        )
    what = f"{field or 'the request'} = {shorten(json.dumps(first['input'], default=str))}{more}"
    limit = first["msg"].removeprefix("Value error, ")
    return InvalidRequest(what, limit=shorten(limit), fix="correct the value")


def _path(location: tuple[int | str, ...]) -> str:
    """`messages[0].content[1].data`; the tags of unions, which a client never wrote, are left out."""
    path = ""
    previous: int | str = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not (previous == "content" and part in ("text", "parts")) and not (
            isinstance(previous, int) and part in ("text", "image", "image_url")
        ):
            path += f".{part}" if path else part
        previous = part
    return path


def shorten(text: str) -> str:
    """An error names what was sent, it does not send it back."""
    return text if len(text) <= MAX_ECHO_CHARS else text[: MAX_ECHO_CHARS - 1] + "…"
