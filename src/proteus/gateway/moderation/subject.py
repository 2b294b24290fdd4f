"""What is checked, and what a check says of it: the contract of the entry points `proteus.moderation`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, Protocol

When = Literal["before", "after"]  # anything is encoded; an answer is sent
CATEGORY = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")  # it is told to clients, to the log and to the metering


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A picture, as encoded by a client, or drawn. Equal ones of a request are shown once."""

    data: bytes = field(repr=False)
    digest: str  # SHA-256 of the bytes, in hex
    format: str  # as its content shows
    width_px: int  # as one looks at it
    height_px: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    when: When
    tenant: str
    request_id: str
    texts: tuple[str, ...] = field(repr=False)
    pictures: tuple[Shown, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Allowed, unless it says otherwise. `category` names why, in small letters, digits, - and _."""

    refused: bool = False
    blurred: frozenset[int] = frozenset()  # of the subject's pictures
    category: str = ""


class CheckFailed(Exception):
    """A check that gives no verdict; its text is for the log, and holds nothing of what was checked."""


class Check(Protocol):
    """Made once, without arguments, and asked by one event loop, for several requests at a time."""

    async def check(self, subject: Subject) -> Verdict: ...


def believed(verdict: object, subject: Subject) -> Verdict:
    """A verdict that can be acted on; raises CheckFailed."""
    if not isinstance(verdict, Verdict):
        raise CheckFailed(f"it returned a {type(verdict).__name__}, no Verdict")
    wants_category = verdict.refused or bool(verdict.blurred)
    if not CATEGORY.fullmatch(verdict.category) and (wants_category or verdict.category):
        raise CheckFailed(f"its category is no word of [a-z0-9_-], 1 to 64: {verdict.category[:64]!a}")
    if not verdict.blurred <= set(range(len(subject.pictures))):
        raise CheckFailed(f"it blurs a picture that there is not, of {len(subject.pictures)}")
    return verdict
