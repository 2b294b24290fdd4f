"""The language model's requests, events and mailboxes, with a Triton and an engine that note what they are given."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from proteus.backend.fleet import LlmEvent
from proteus.backend.letters import unpack
from proteus.language.generation import Emit, Event, GenerationRequest
from tests.backend import triton

NAMES = ("proteus.backend.tensors", "proteus.backend.guard", "proteus.backend.port", "proteus.backend.generation")
DOOR, OTHER = b"d" * 16, b"o" * 16


class Kept:
    """An engine that keeps its requests."""

    def __init__(self) -> None:
        self.emits: list[Emit] = []

    def submit(self, request: GenerationRequest, emit: Emit) -> None:
        self.emits.append(emit)

    def cancel(self, request_key: bytes) -> None:
        raise AssertionError

    def close(self) -> None:
        pass


@pytest.fixture
def generation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    module = triton.module()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    generation = importlib.import_module(NAMES[-1])
    monkeypatch.setattr(importlib.import_module("proteus.backend.port"), "COLLECT_S", 0.01)
    yield generation
    for name in NAMES:
        del sys.modules[name]


class Llm:
    """The port before an engine, at a time of the test's choice."""

    def __init__(self, generation: Any) -> None:
        self.engine, self.now_s = Kept(), 1000.0
        port = importlib.import_module("proteus.backend.port")
        self.port = port.Port(self.engine, generation.LlmWire(), clock_s=lambda: self.now_s)

    def generate(self, mailbox: bytes) -> Emit:
        self._serve(mailbox, input_ids=np.array([1, 2], dtype=np.int32))
        return self.engine.emits[-1]

    def collect(self, mailbox: bytes) -> list[str]:
        (answer,) = self._serve(mailbox, collect=np.array([True])).answers
        letters = unpack(answer["events"].tobytes(), "llm")
        return [letter.content.text for letter in letters if isinstance(letter.content, LlmEvent)]

    def _serve(self, mailbox: bytes, **inputs: Any) -> triton.Request:
        request = triton.Request({"mailbox": np.frombuffer(mailbox, dtype=np.uint8), **inputs})
        self.port.serve(request)
        assert request.ended.wait(10)
        return request


@pytest.fixture
def llm(generation: Any) -> Iterator[Llm]:
    llm = Llm(generation)
    yield llm
    llm.port.close()


def test_events_wait_for_their_door_while_it_comes_now_and_then(llm: Llm) -> None:
    emit = llm.generate(DOOR)
    for number in range(10):
        emit(Event((number,), f"{number}"))
        llm.now_s += 50
        llm.generate(bytes([number]) * 16)
        assert llm.collect(DOOR) == [f"{number}"]


def test_a_mailbox_that_its_door_left_is_dropped_with_what_lies_in_it(llm: Llm) -> None:
    """A door takes a new one each time that it found the language model silent."""
    emit = llm.generate(DOOR)
    emit(Event((1,), "early"))
    llm.now_s += 61
    llm.generate(OTHER)
    emit(Event((2,), "late"))
    assert llm.collect(DOOR) == []
