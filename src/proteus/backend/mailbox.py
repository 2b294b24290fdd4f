"""Events of many requests on their way from one model to another, collected together.

Triton 2.51 can only stream between models with one blocking iterator for each request, and enough of those lock each
other up (docs/decisions/0005). So the language model keeps the door's events, and the door asks for all that are there.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from proteus.backend.failures import revive
from proteus.backend.fleet import LlmEnd, LlmEvent
from proteus.errors import ProteusError
from proteus.language.generation import TokenLogprobs

Posted = TypeVar("Posted")
END_FIELDS = tuple(field.name for field in fields(LlmEnd))


@dataclass(frozen=True, slots=True)
class Letter:
    request_key: bytes
    content: LlmEvent | ProteusError  # an error is the last letter of its request


class Mailbox(Generic[Posted]):
    """Filled and emptied by any threads; what is posted stays in order.

    The engine's thread posts, so that posting does next to nothing; the rest is done by who collects.
    """

    def __init__(self) -> None:
        self._posted: SimpleQueue[Posted | None] = SimpleQueue()  # None: it is closed
        self._collecting = threading.Lock()

    def put(self, posted: Posted) -> None:
        self._posted.put(posted)

    def collect(self, wait_s: float) -> list[Posted]:
        """All that is there, waiting for the first; none after `wait_s`, or when the mailbox is closed."""
        found: list[Posted] = []
        with self._collecting:
            try:
                posted = self._posted.get(timeout=wait_s)
                while posted is not None:
                    found.append(posted)
                    posted = self._posted.get_nowait()
                self.close()  # the next collector is not to wait either
            except Empty:
                pass
        return found

    def close(self) -> None:
        """Wake who waits."""
        self._posted.put(None)


def pack(letters: Sequence[Letter]) -> bytes:
    """Letters as JSON."""
    return json.dumps([_packed(letter) for letter in letters]).encode()


def unpack(data: bytes, sender: str) -> list[Letter]:
    """Letters of `pack`; `sender` is the model they come from."""
    return [Letter(bytes.fromhex(key), _content(content, sender)) for key, content in json.loads(data)]


def _packed(letter: Letter) -> tuple[str, object]:
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
