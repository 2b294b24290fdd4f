"""Streamed answers, held back until they are checked: nothing leaves that no check has seen.

A text is checked at the end of a sentence, or when 200 characters wait, and at its end, each time with the 200
characters before. What ends within a word stays until the word is whole.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from proteus.client.results import Piece

WINDOW_CHARS = 200
SENTENCE_CHARS = 40  # fewer are no sentence: "1. 2. 3." would be three checks
SENTENCE_END = re.compile(r"[.!?\n]\s*$")
CheckText = Callable[[str], Awaitable[None]]


@dataclass(slots=True)
class _Text:
    """Of one answer."""

    waiting: list[Piece] = field(default_factory=list)
    waiting_chars: int = 0
    before: str = ""  # that was sent, the end of it

    def text(self) -> str:
        return "".join(piece.text for piece in self.waiting)

    def release(self, num_chars: int) -> list[Piece]:
        """The pieces that end within the first `num_chars` of what waits; those without text wait for the next."""
        at = whole = released = 0
        for number, piece in enumerate(self.waiting, start=1):
            at += len(piece.text)
            if at > num_chars:
                break
            if piece.text:
                whole, released = number, at
        ready, self.waiting = self.waiting[:whole], self.waiting[whole:]
        self.waiting_chars -= released
        self.before = (self.before + "".join(piece.text for piece in ready))[-WINDOW_CHARS:]
        return ready


class Held:
    """The answers of one request; `check` raises where a text must not be sent."""

    def __init__(self, check: CheckText) -> None:
        self._check = check
        self._texts: dict[int, _Text] = {}

    async def add(self, piece: Piece) -> Sequence[Piece]:
        """The pieces that may leave now, which are of the same answer."""
        text = self._texts.setdefault(piece.index, _Text())
        text.waiting.append(piece)
        text.waiting_chars += len(piece.text)
        full = text.waiting_chars >= WINDOW_CHARS
        if not full and not (text.waiting_chars >= SENTENCE_CHARS and SENTENCE_END.search(piece.text)):
            return ()
        waiting = text.text()
        await self._check(text.before + waiting)
        ready = text.release(_last_boundary(waiting) if full else len(waiting))
        if text.waiting_chars > WINDOW_CHARS // 2:  # one long word, or a writing without spaces
            ready += text.release(text.waiting_chars)
        return ready

    async def end(self) -> Sequence[Piece]:
        """All that still waits, when the answers are complete."""
        for text in self._texts.values():
            if text.waiting_chars:
                await self._check(text.before + text.text())
        return [piece for text in self._texts.values() for piece in text.waiting]


def _last_boundary(text: str) -> int:
    """The characters up to the last whitespace, it included."""
    return max((at for at, one in enumerate(text, start=1) if one.isspace()), default=0)
