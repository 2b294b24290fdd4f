"""A JSON document of any kind to typed fields; every mistake is named with its field, value and fix."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from proteus.errors import InvalidRequest
from proteus.language.sampling import MAX_BIASES

MAX_ECHO_CHARS = 120  # of what a client sent, repeated in an error
MAX_WHOLE = 2**63  # no field means anything above; longer numbers have no place in a float, nor in an error
MAX_REQUEST_ID_CHARS = 128
MAX_MISTAKES = 100  # that are listed: to list a million stops every other request for seconds
KNOWN_PARTS = "text, image, image_url"
FIXES = {
    "extra_forbidden": "remove the field or correct its spelling; docs/contract.md lists every field",
    "missing": "add the field",
}


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def printable(text: str) -> str:
    """`text`, which may stand in a log; raises ValueError."""
    if not text.isprintable():
        raise ValueError("every character must be printable")
    return text


RequestId = Annotated[str, Field(min_length=1, max_length=MAX_REQUEST_ID_CHARS), AfterValidator(printable)]
Parsed = TypeVar("Parsed", bound=BaseModel)


class Asked(Part):
    """What a request says of itself, whatever it asks for."""

    request_id: RequestId | None = None  # by which it can be stopped
    cache_scope: str = ""
    tenant: str = ""  # whose share of the capacity it is; shares are fair between tenants
    latency_class: Literal["interactive", "batch"] = "interactive"
    deadline_ms: Annotated[int, Field(ge=1, lt=MAX_WHOLE)] | None = None  # to be started

    @property
    def owner(self) -> str:
        """The tenant; who names none is known by the cache scope."""
        return self.tenant or self.cache_scope


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentLimit:
    """Of the bytes of a document: as it stands in the deployment file, and what to do about it."""

    key: str  # `[table] name`
    max_bytes: int
    fix: str


def parse(kind: type[Parsed], document: bytes, limit: DocumentLimit) -> Parsed:
    """A document of this kind; raises InvalidRequest."""
    if len(document) > limit.max_bytes:
        raise InvalidRequest(
            f"the request document has {len(document):,} bytes",
            limit=f"{limit.key} = {limit.max_bytes:,}",
            fix=limit.fix,
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
        raise _refusal(error) from error


def check(kind: type[Parsed], document: object) -> Parsed:
    """The same of a document whose JSON is read already; its strings, Unicode all, are kept and not copied."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise _refusal(error) from error


def _refusal(error: ValidationError) -> InvalidRequest:
    """Its `param` is the field of the first mistake."""
    refusal = _translate(error)
    if error.error_count() <= MAX_MISTAKES:
        refusal.param = shorten(_path(error.errors(include_url=False)[0]["loc"])) or None
    return refusal


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
        name = written(first["input"])
        return InvalidRequest(
            f"logit_bias names {name}{more}", limit="a token id in decimal digits", fix="correct the id"
        )
    if kind == "too_long" and field == "logit_bias":
        return InvalidRequest(
            f"logit_bias names {len(first['input']):,} ids{more}", limit=f"{MAX_BIASES:,} ids", fix="send less"
        )
    what = f"{field or 'the request'} = {written(first['input'])}{more}"
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


def written(value: object, *, ensure_ascii: bool = True) -> str:
    """A value in an error: as JSON, shortened; of megabytes only what is told is written at all."""
    return shorten(json.dumps(_begun(value), default=str, ensure_ascii=ensure_ascii))


def _begun(value: object) -> object:
    """As much of it as may be told, and one more."""
    match value:
        case str():
            return value[: MAX_ECHO_CHARS + 1]
        case list():
            return [_begun(one) for one in value[:MAX_ECHO_CHARS]]
        case dict():
            return {str(name)[: MAX_ECHO_CHARS + 1]: _begun(value[name]) for name in islice(value, MAX_ECHO_CHARS)}
        case _:
            return value


def shorten(text: str) -> str:
    """An error names what was sent, it does not send it back; nothing in it moves the cursor of who reads it."""
    text = text[: MAX_ECHO_CHARS + 1]
    if not text.isprintable():
        text = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
    return text if len(text) <= MAX_ECHO_CHARS else text[: MAX_ECHO_CHARS - 1] + "…"
