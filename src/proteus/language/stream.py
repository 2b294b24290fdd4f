"""Ids to pieces of text while they come: whole characters only, and cut before a stop string.

The pieces of an answer add up to what the tokenizer decodes from all its ids.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tokenizers import Tokenizer

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # how the first bytes of a character decode


class Detokenizer:
    """What streams of one tokenizer share."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.skipped = frozenset(number for number, token in added.items() if token.special)
        # SentencePiece's byte tokens decode together: a later one can change how the earlier ones read.
        falls_back = "ByteFallback" in json.dumps(json.loads(tokenizer.to_str())["decoder"])
        byte_names = (f"<0x{byte:02X}>" for byte in range(256)) if falls_back else ()
        self.bytes = frozenset(number for name in byte_names if (number := tokenizer.token_to_id(name)) is not None)

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text


class TextStream:
    """The text of one answer. A window of ids is decoded anew for each id: what precedes it is finished."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self._window: list[int] = []
        self._num_before = 0  # ids of the window that only give the next ones their context
        self._num_given = 0  # characters of the window's text that were given out or belong to those ids

    def push(self, token_id: int) -> str:
        """The text that became certain with this id; may be empty."""
        if token_id in self._detokenizer.skipped:
            return ""
        self._window.append(token_id)
        if token_id in self._detokenizer.bytes:
            return ""
        text = self._detokenizer.decode(self._window)
        certain = text.removesuffix(UNFINISHED)
        piece, self._num_given = certain[self._num_given :], max(len(certain), self._num_given)
        if certain == text and piece:
            self._window = self._window[self._num_before :]
            self._num_before = len(self._window)
            self._num_given = len(self._detokenizer.decode(self._window))
        return piece

    def flush(self) -> str:
        """The rest, once no id will follow."""
        return self._detokenizer.decode(self._window)[self._num_given :]


class StopStrings:
    """Gives text on up to the first stop string, and holds back what could be the beginning of one.

    Of several, the one that is complete first counts, so that the cut does not depend on how the text came in pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """Text that is certain to come before any stop string; once `found`, nothing more."""
        if not self._stops or self.found:
            return "" if self.found else piece
        text = self._held + piece
        places = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)[1]]
        kept = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def flush(self) -> str:
        """What was held back, once no text will follow."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
