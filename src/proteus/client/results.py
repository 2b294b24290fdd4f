"""What an ask returns: pieces while the text comes, then the whole answer with its bill and its times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one event of the stream added; `text` may be empty while a character is still incomplete."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    text_tokens: int  # every prompt token that is not a visual token
    visual_tokens: int
    output_tokens: int  # the token that ended the answer included


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A complete answer. `token_ids` holds the ending token, which is no part of `text`."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str  # "stop", "length" or "cancelled"
    usage: Usage
    stages_ms: Mapping[str, float]  # in the order of the stages
    pictures: tuple[str, ...] = ()  # of each distinct picture: "encoded" for this request, "cached" or "shared"
