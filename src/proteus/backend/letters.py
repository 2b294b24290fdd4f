"""The language model's events as JSON, on their way to the door."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, fields
from typing import Any

from proteus.backend.failures import revive
from proteus.backend.fleet import LlmEnd, LlmEvent
from proteus.backend.mailbox import Letter
from proteus.errors import ProteusError
from proteus.language.generation import TokenLogprobs

LlmLetter = Letter[LlmEvent]
END_FIELDS = tuple(field.name for field in fields(LlmEnd))


def pack(letters: Sequence[LlmLetter]) -> bytes:
    """Letters as JSON."""
    return json.dumps([_packed(letter) for letter in letters]).encode()


def unpack(data: bytes, sender: str) -> list[LlmLetter]:
    """Letters of `pack`; `sender` is the model they come from."""
    return [Letter(bytes.fromhex(key), _content(content, sender)) for key, content in json.loads(data)]


def _packed(letter: LlmLetter) -> tuple[str, object]:
    content = letter.content
    if isinstance(content, ProteusError):
        return letter.request_key.hex(), str(content)
    end = None if content.end is None else astuple(content.end)
    logprobs = [(entry.token_id, entry.logprob, entry.top) for entry in content.logprobs]
    return letter.request_key.hex(), (content.text, content.token_ids, logprobs, end)


def _content(content: Any, sender: str) -> LlmEvent | ProteusError:
    if isinstance(content, str):
        return revive(content, sender)
    text, token_ids, logprobs, end = content
    return LlmEvent(
        text=text,
        token_ids=tuple(token_ids),
        logprobs=tuple(
            TokenLogprobs(token_id=token_id, logprob=logprob, top=tuple((number, value) for number, value in top))
            for token_id, logprob, top in logprobs
        ),
        end=None if end is None else LlmEnd(**dict(zip(END_FIELDS, end, strict=True))),
    )
