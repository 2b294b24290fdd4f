"""Which model and which tier `auto` takes: a rule without chance, of the kind of question, sizes and price.

docs/gateway.md states it, docs/decisions/0025 says why it is so. Only words of the last question are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from proteus.door.request import ChatRequest
from proteus.limits import TierName
from proteus.limits_gateway import AutoRule

MAX_LOOKED_AT_CHARS = 2_000  # of a question, its last ones: what is asked stands at its end
Need = Literal["fine", "coarse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was taken and why; `proteus.auto` of an answer."""

    model: str
    tier: TierName | None  # of pictures whose part names none; None: there are no such pictures
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Of a question: what it needs to see of a picture."""

    says: str
    need: Need
    words: re.Pattern[str]


def _kind(says: str, need: Need, *words: str) -> Kind:
    return Kind(says=says, need=need, words=re.compile(rf"\b(?:{'|'.join(words)})\b", re.IGNORECASE))


# The first that fits is the kind: what needs detail goes before what does not.
KINDS = (
    _kind(
        "asks to read",
        "fine",
        *("read", "reads", "written", "spell", "spells", "spelled", "transcribe", "ocr"),
        *("texts?", "words?", "letters?", "numbers?", "digits?", "captions?", "labels?", "signs?", "titles?"),
        *("says?", "prices?", "dates?", "receipts?", "invoices?", "documents?", "plates?"),
    ),
    _kind(
        "asks about a chart",
        "fine",
        *("charts?", "graphs?", "plots?", "diagrams?", "bars?", "axis", "axes", "values?", "tables?", "percent"),
    ),
    _kind(
        "asks about something small",
        "fine",
        *("small", "smaller", "smallest", "tiny", "tiniest", "little", "thin", "details?", "fine", "background"),
    ),
    _kind("asks to count", "fine", "how many", "count", "counts", "number of", "how often"),
    _kind("asks for a colour", "coarse", "colou?rs?", "colou?red"),
    _kind("asks for a shape", "coarse", "shapes?", "forms?"),
    _kind("asks for a place", "coarse", "where", "which (?:place|side|corner|picture|image|photo)"),
    _kind("asks to describe", "coarse", "describe", "what is (?:this|that|it|in)", "what do you see", "summari[sz]e"),
    _kind(
        "asks yes or no",
        "coarse",
        *("is there", "are there", "is it", "is this", "is that", "do you see", "can you see", "does it", "yes or no"),
    ),
)
UNKNOWN = Kind(says="asks for nothing that the rule knows", need="fine", words=re.compile("(?!)"))


def kind_of(request: ChatRequest) -> Kind:
    """By the words of the last message, whose own they are."""
    question = " ".join(request.messages[-1].texts())[-MAX_LOOKED_AT_CHARS:]
    return next((kind for kind in KINDS if kind.words.search(question)), UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One to try."""

    light: bool
    tier: TierName | None
    because: str


def choices(
    kind: Kind,
    sizes_px: Sequence[tuple[int, int]],  # of all pictures, as one looks at them
    free_px: Sequence[tuple[int, int]],  # of those whose part names no tier
    rule: AutoRule,
    *,
    auto_max_pixels: int,  # of tier `auto`
    has_light: bool,
) -> Iterator[Choice]:
    """The one that the rule takes, then those to fall back to where it is too dear, ever cheaper."""
    because = f"{kind.says}; {_seen(sizes_px)}" if sizes_px else "no picture"
    pixels = sum(width_px * height_px for width_px, height_px in sizes_px)
    light = has_light and (not sizes_px or (kind.need == "coarse" and pixels <= rule.light_max_pixels))
    tier = _tier(kind, [width_px * height_px for width_px, height_px in free_px], rule, auto_max_pixels)
    tiers: tuple[TierName | None, ...] = (None,) if tier is None else CHEAPER[tier]
    for below in tiers:
        yield Choice(light=light, tier=below, because=because)
    if has_light:  # where the one cannot, or is too dear
        yield Choice(light=not light, tier=tier if light else tiers[-1], because=because)


CHEAPER: dict[TierName, tuple[TierName, ...]] = {
    "high": ("high", "auto", "low"),
    "auto": ("auto", "low"),
    "low": ("low",),
}


def _tier(kind: Kind, pixels: Sequence[int], rule: AutoRule, auto_max_pixels: int) -> TierName | None:
    """One for all of them: the largest decides."""
    if not pixels:
        return None
    if kind.need == "coarse":
        return "low" if max(pixels) <= rule.low_max_pixels else "auto"
    return "high" if max(pixels) > auto_max_pixels and kind is not UNKNOWN else "auto"


def _seen(sizes_px: Sequence[tuple[int, int]]) -> str:
    if len(sizes_px) == 1:
        return f"{sizes_px[0][0]}x{sizes_px[0][1]} px"
    pixels = sum(width_px * height_px for width_px, height_px in sizes_px)
    return f"{len(sizes_px)} pictures of {pixels:,} px"
