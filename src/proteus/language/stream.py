"""Ids to pieces of text while they come: whole characters only, and cut before a stop string.

The pieces of an answer add up to what the tokenizer decodes from all its ids.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from tokenizers import Tokenizer

LETTERS = ("a", "e", "1")  # ordinary tokens that stand in front of another while its own text is found
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # how the first bytes of a character decode


class TextStream(Protocol):
    """The text of one answer."""

    def push(self, token_id: int) -> str:
        """The text that became certain with this id; may be empty."""

    def flush(self) -> str:
        """The rest, once no id will follow."""


class Detokenizer:
    """Opens the streams of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        decoder = json.loads(tokenizer.to_str())["decoder"]
        added = tokenizer.get_added_tokens_decoder()
        self._special = {number: token.content for number, token in added.items() if token.special}
        self._tokenizer = tokenizer
        is_byte_level = bool(decoder) and decoder["type"] == "ByteLevel"
        self._bytes = _bytes_of_ids(tokenizer, self._special.keys()) if is_byte_level else None
        self._whole = _whole_texts(self._bytes) if self._bytes is not None else {}
        # SentencePiece's byte tokens decode together: a later one can change how the earlier ones read.
        names = [f"<0x{byte:02X}>" for byte in range(256)] if "ByteFallback" in json.dumps(decoder) else []
        numbers = [tokenizer.token_to_id(name) for name in names]
        self._held = {number: bytes([byte]) for byte, number in enumerate(numbers) if number is not None}
        self._letter = next((n for name in LETTERS if (n := tokenizer.token_to_id(name)) is not None), None)

    def stream(self) -> TextStream:
        """A fresh one, for one answer."""
        if self._bytes is not None:
            return ByteStream(self._bytes, self._whole)
        return WindowStream(self._tokenizer, skipped=self._special.keys(), held=self._held.keys())

    def token_bytes(self, token_id: int) -> bytes:
        """What one token adds to the answer's bytes; of a special token its name, which answers leave out."""
        if (name := self._special.get(token_id)) is not None:
            return name.encode()
        if self._bytes is not None:
            return self._bytes.get(token_id, b"")
        if (byte := self._held.get(token_id)) is not None:
            return byte
        if self._letter is None:
            return self._decode(token_id).encode()
        # After a letter, because a decoder may take the space away from the first word.
        return self._decode(self._letter, token_id).removeprefix(self._decode(self._letter)).encode()

    def token_text(self, token_id: int) -> str:
        """The same as text; bytes that are no whole character show as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def _decode(self, *token_ids: int) -> str:
        text: str = self._tokenizer.decode(token_ids)
        return text


class ByteStream:
    """For byte-level tokenizers: each id stands for some bytes, whatever its neighbours."""

    def __init__(self, bytes_of_ids: Mapping[int, bytes], whole: Mapping[int, str]) -> None:
        """`whole` has the text of each id whose bytes are whole characters: nearly all that an answer says."""
        self._bytes_of_ids, self._whole = bytes_of_ids, whole
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_within = False  # a character whose first bytes have come

    def push(self, token_id: int) -> str:
        if not self._is_within and (text := self._whole.get(token_id)) is not None:
            return text
        text = self._utf8.decode(self._bytes_of_ids.get(token_id, b""))
        self._is_within = self._utf8.getstate()[0] != b""
        return text

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class WindowStream:
    """For all others: a window of ids is decoded anew for each id; what lies before it is finished."""

    def __init__(self, tokenizer: Tokenizer, *, skipped: Collection[int], held: Collection[int]) -> None:
        self._tokenizer, self._skipped, self._held = tokenizer, skipped, held
        self._window: list[int] = []
        self._num_before = 0  # ids of the window that only give the next ones their context
        self._num_given = 0  # characters of the window's text that were given out or belong to those ids

    def push(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        self._window.append(token_id)
        if token_id in self._held:
            return ""
        text = self._tokenizer.decode(self._window)
        certain = text.removesuffix(UNFINISHED)
        piece, self._num_given = certain[self._num_given :], max(len(certain), self._num_given)
        if certain == text and piece:
            self._window = self._window[self._num_before :]
            self._num_before = len(self._window)
            self._num_given = len(self._tokenizer.decode(self._window))
        return piece

    def flush(self) -> str:
        rest: str = self._tokenizer.decode(self._window)[self._num_given :]
        return rest


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


def _bytes_of_ids(tokenizer: Tokenizer, special: Collection[int]) -> dict[int, bytes]:
    """Bytes of each id that is not special. A token with a character that names no byte is plain text."""
    byte_of = _byte_characters()
    return {
        number: bytes(byte_of[c] for c in token) if byte_of.keys() >= set(token) else token.encode()
        for token, number in tokenizer.get_vocab(with_added_tokens=True).items()
        if number not in special
    }


def _whole_texts(bytes_of_ids: Mapping[int, bytes]) -> dict[int, str]:
    whole = {}
    for number, data in bytes_of_ids.items():
        try:
            whole[number] = data.decode()
        except UnicodeDecodeError:
            continue  # a part of a character, which only its neighbours finish
    return whole


def _byte_characters() -> dict[str, int]:
    """The byte that each of GPT-2's 256 characters names: its own code where printable, else from U+0100 on in turn."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
