"""The fleet before a Triton whose language model falls silent when the test says so."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from proteus.backend.fleet import Context, LlmCall
from proteus.errors import Unavailable

NAMES = ("proteus.backend.tensors", "proteus.backend.calls", "proteus.backend.collector", "proteus.backend.models")


class Triton:
    """Its `llm` takes requests and says nothing of them; while it is silent, calls wait."""

    def __init__(self) -> None:
        self.speaks = threading.Event()
        self.speaks.set()
        self.taken: list[bytes] = []
        self.stopped: list[bytes] = []

    def request(self, inputs: Any, **_: Any) -> SimpleNamespace:
        given = {tensor.name: tensor.as_numpy() for tensor in inputs}
        return SimpleNamespace(exec=lambda decoupled: iter([self._answer(given)]))

    def _answer(self, given: dict[str, Any]) -> SimpleNamespace:
        outputs = {}
        if "collect" in given:
            assert self.speaks.wait(10)
            outputs = {"events": np.frombuffer(b"[]", dtype=np.uint8)}
        elif "stop" in given:
            self.stopped.append(given["request_key"].tobytes())
        else:
            self.taken.append(given["request_key"].tobytes())
        return SimpleNamespace(
            has_error=lambda: False, output_tensors=lambda: [_tensor(name, array) for name, array in outputs.items()]
        )


def _tensor(name: str, array: Any) -> SimpleNamespace:
    return SimpleNamespace(name=lambda: name, as_numpy=lambda: array, is_cpu=lambda: True)


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Triton:
    triton = Triton()
    module: Any = ModuleType("triton_python_backend_utils")
    module.InferenceRequest = triton.request
    module.Tensor = lambda name, array: SimpleNamespace(name=name, as_numpy=lambda: array)
    module.TRITONSERVER_MEMORY_CPU, module.PreferredMemory = 0, lambda kind, device: (kind, device)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return triton


@pytest.fixture
def models(triton: Triton, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    models = importlib.import_module(NAMES[-1])
    collector = importlib.import_module("proteus.backend.collector")
    monkeypatch.setattr(collector, "SILENCE_S", 0.05)
    monkeypatch.setattr(collector, "RETRY_S", 0.01)
    yield models
    for name in NAMES:
        del sys.modules[name]


def test_what_was_given_up_in_a_silence_is_stopped_once_the_model_answers_again(models: Any, triton: Triton) -> None:
    """Its client was told that the language model does not answer; nobody wants the tokens that it still makes."""

    async def scenario() -> None:
        fleet = models.TritonFleet()
        call = LlmCall(
            request_key=b"k" * 16,
            input_ids=np.array([1], dtype=np.int32),
            visual_tokens=None,
            visual_spans=(),
            media_keys=(),
            sampling=b"{}",
            scheduling=b"{}",
        )
        triton.speaks.clear()
        with pytest.raises(Unavailable, match="does not answer"):
            await anext(fleet.generate(call, Context(parameters={})))
        assert (triton.taken, triton.stopped) == ([call.request_key], [])
        triton.speaks.set()
        while not triton.stopped:
            await asyncio.sleep(0.001)
        assert triton.stopped == [call.request_key]
        await fleet._llm._collecting  # which ends, since nothing is open

    asyncio.run(asyncio.wait_for(scenario(), 20))
