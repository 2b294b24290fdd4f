"""Calls to other models, with a Triton of which the test decides when it answers."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from collections.abc import Iterator
from time import monotonic, sleep
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from proteus.backend.fleet import Context
from proteus.contract import CONNECTOR


class Triton:
    """Every call of it waits for `go_on`."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.running = self.most = 0
        self._lock = threading.Lock()

    def request(self, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(exec=self._run)

    def device_request(self, preferred_memory: Any = None, **_: Any) -> SimpleNamespace:
        """Of a model whose backend leaves its outputs on the GPU, unless it is asked for another place."""

        def read() -> str:
            assert preferred_memory == ("host", 0), "Tensor is stored in GPU and cannot be converted to NumPy."
            return "rows"

        tensor = SimpleNamespace(name=lambda: "visual_tokens", as_numpy=read)
        response = SimpleNamespace(has_error=lambda: False, output_tensors=lambda: [tensor])
        return SimpleNamespace(exec=lambda decoupled=False: iter([response]) if decoupled else response)

    def _run(self) -> SimpleNamespace:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.go_on.wait(10)
        with self._lock:
            self.running -= 1
        return SimpleNamespace(has_error=lambda: False, output_tensors=tuple)


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Triton:
    triton = Triton()
    module: Any = ModuleType("triton_python_backend_utils")
    module.InferenceRequest = triton.request
    module.Tensor = object
    module.TRITONSERVER_MEMORY_CPU, module.PreferredMemory = "host", lambda kind, device: (kind, device)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return triton


@pytest.fixture
def calls(triton: Triton) -> Iterator[ModuleType]:
    names = ("proteus.backend.tensors", "proteus.backend.calls")
    assert not any(name in sys.modules for name in names), "they need Triton, so nothing else here imports them"
    yield importlib.import_module(names[-1])
    for name in names:
        del sys.modules[name]


def test_a_call_that_nobody_waits_for_any_more_keeps_its_place_until_it_ends(calls: Any, triton: Triton) -> None:
    async def scenario() -> None:
        caller = calls.Caller()

        def call() -> asyncio.Task[Any]:
            return asyncio.create_task(caller.call(CONNECTOR, {}, Context(parameters={})))

        left = [call() for _ in range(calls.MAX_CALLS)]
        while triton.running < calls.MAX_CALLS:
            await asyncio.sleep(0.001)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        later = [call() for _ in range(4)]
        await asyncio.sleep(0.05)
        assert triton.running == calls.MAX_CALLS
        triton.go_on.set()
        assert await asyncio.gather(*later) == [{}] * 4
        assert triton.most == calls.MAX_CALLS
        assert await call() == {}

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_what_a_model_on_a_gpu_answers_is_asked_for_in_host_memory(calls: Any, triton: Triton) -> None:
    """As native backends for TensorRT and for ONNX Runtime on CUDA do it; numpy reads nothing else."""
    calls.pb_utils.InferenceRequest = triton.device_request

    async def scenario() -> None:
        caller, nothing = calls.Caller(), Context(parameters={})
        assert await caller.call(CONNECTOR, {}, nothing) == {"visual_tokens": "rows"}
        assert await caller.call_decoupled(CONNECTOR, {}, nothing) == {"visual_tokens": "rows"}

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_call_that_outlives_its_loop_ends_without_a_word(
    calls: Any, triton: Triton, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    monkeypatch.setattr(calls.pb_utils, "Logger", SimpleNamespace(log_error=lambda text: None), raising=False)

    async def scenario() -> None:
        left = asyncio.create_task(calls.Caller().call(CONNECTOR, {}, Context(parameters={})))
        while not triton.running:
            await asyncio.sleep(0.001)
        left.cancel()

    asyncio.run(asyncio.wait_for(scenario(), 20))
    triton.go_on.set()
    until_s = monotonic() + 10
    while not raised and not calls.THREADS._num_idle:
        assert monotonic() < until_s
        sleep(0.001)
    assert not raised
