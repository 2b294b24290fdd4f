"""Answers that move to another slot while they decode."""

from __future__ import annotations

from typing import Any

import pytest

from proteus.language.engine import OnnxEngine
from proteus.language.kv_slots import KvSlots
from proteus.language.sampling import Sampling
from tests.language.clients import LONG, OTHERS, PROMPT, Client


def test_an_answer_that_moves_is_the_same_to_the_last_bit(
    engine: OnnxEngine, whole: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short ones take the lower slots and end; the logprobs of the long one say whether a bit was lost on the way."""
    moved: list[tuple[int, int, int]] = []
    move = KvSlots.move

    def noted(slots: KvSlots, source: int, slot: int, num_tokens: int) -> None:
        moved.append((source, slot, num_tokens))
        move(slots, source, slot, num_tokens)

    monkeypatch.setattr(KvSlots, "move", noted)
    wanted = Sampling(max_tokens=LONG, logprobs=True)
    alone = Client(engine, PROMPT, wanted).submit().wait()
    assert not moved
    for _ in range(20):  # on a busy machine a short one may end before the long one is there to take a higher slot
        others = [
            Client(engine, OTHERS[0], Sampling(max_tokens=20)),
            Client(engine, OTHERS[2], Sampling(max_tokens=30)),
        ]
        crowded = Client(engine, PROMPT, wanted)
        for client in (*others, crowded):
            client.submit()
        crowded.wait()
        assert _bits(crowded) == _bits(alone)
        assert crowded.ids == whole.ids
        if any(source > slot and num_tokens > len(PROMPT) for source, slot, num_tokens in moved):
            return
    pytest.fail("no answer was moved")


def _bits(client: Client) -> list[Any]:
    return [event.logprobs for event in client.events if hasattr(event, "logprobs")]
