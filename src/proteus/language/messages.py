"""A conversation as ordered parts. Pictures are only numbered here; what they hold is not known to this room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from proteus.errors import InvalidRequest

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class PicturePart:
    index: int  # of the request's pictures, from 0


@dataclass(frozen=True, slots=True)
class Message:
    role: str  # one of ROLES
    parts: tuple[TextPart | PicturePart, ...]


def texts(messages: Sequence[Message]) -> list[str]:
    """Every text of the conversation, in order."""
    return [part.text for message in messages for part in message.parts if isinstance(part, TextPart)]


def pictures(messages: Sequence[Message]) -> list[PicturePart]:
    """Every picture part of the conversation, in order."""
    return [part for message in messages for part in message.parts if isinstance(part, PicturePart)]


def check_messages(messages: Sequence[Message]) -> None:
    """Raises InvalidRequest for an empty conversation, an unknown role or text that has no UTF-8 form."""
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            raise InvalidRequest(
                f"messages[{index}].role is unknown", limit=f"known are {', '.join(ROLES)}", fix="use one of them"
            )
    contents = texts(messages)
    for text in contents:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"a text holds half of a surrogate pair at character {error.start}", fix="send whole characters"
            ) from error
    if not any(contents) and not pictures(messages):
        raise InvalidRequest("the conversation is empty", fix="send a message with text or a picture")
