"""The CUDA runtime as `cuda-python` gives it, over memory of the host; tests/fake_tensorrt.py runs engines on it.

Work runs when its stream is waited for, or when a graph that holds it is launched and waited for. An address that is
nobody's, and a call from a thread that speaks to another device, are refused.
"""

from __future__ import annotations

import ctypes
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

SM = 90
ALIGNED = 256
Error = IntEnum(
    "Error",
    {
        "cudaSuccess": 0,
        "cudaErrorInvalidValue": 1,
        "cudaErrorMemoryAllocation": 2,
        "cudaErrorNoDevice": 100,
        "cudaErrorStreamCaptureInvalidated": 901,
    },
)
CopyKind = IntEnum("CopyKind", {"cudaMemcpyHostToDevice": 1, "cudaMemcpyDeviceToHost": 2})
CaptureMode = IntEnum("CaptureMode", {"cudaStreamCaptureModeThreadLocal": 1})
DeviceAttribute = IntEnum(
    "DeviceAttribute", {"cudaDevAttrComputeCapabilityMajor": 75, "cudaDevAttrComputeCapabilityMinor": 76}
)
OK, BAD = Error.cudaSuccess, Error.cudaErrorInvalidValue


@dataclass(eq=False)
class _Stream:
    device: int
    queue: list[Callable[[], None]] = field(default_factory=list)
    captured: list[Callable[[], None]] | None = None
    is_spoilt: bool = False

    def add(self, work: Callable[[], None]) -> None:
        (self.queue if self.captured is None else self.captured).append(work)


class FakeCuda(types.ModuleType):
    """`cuda.bindings.runtime`: functions give (error, value…)."""

    def __init__(self, devices: int = 1) -> None:
        super().__init__("cuda.bindings.runtime")
        self.cudaError_t, self.cudaMemcpyKind = Error, CopyKind
        self.cudaStreamCaptureMode, self.cudaDeviceAttr = CaptureMode, DeviceAttribute
        self.devices, self.refuses_capture, self.has_no_room_for_graphs = devices, False, False
        self.last_error = OK
        self.device_memory: dict[int, Any] = {}  # by address
        self.host_memory: dict[int, Any] = {}
        self.streams: dict[int, _Stream] = {}
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.launches = 0
        self._current = threading.local()

    def cudaGetDeviceCount(self) -> tuple[Error, int | None]:
        return (OK, self.devices) if self.devices else (Error.cudaErrorNoDevice, None)

    def cudaSetDevice(self, device: int) -> tuple[Error]:
        self._current.device = device
        return (OK if 0 <= device < self.devices else BAD,)

    def cudaDeviceGetAttribute(self, attr: DeviceAttribute, device: int) -> tuple[Error, int]:
        return OK, SM // 10 if attr is DeviceAttribute.cudaDevAttrComputeCapabilityMajor else SM % 10

    def cudaMalloc(self, size: int) -> tuple[Error, int | None]:
        if size <= 0 or not self._is_current():
            return BAD, None
        memory = (ctypes.c_char * (size + ALIGNED))()
        address = -(-ctypes.addressof(memory) // ALIGNED) * ALIGNED
        self.device_memory[address] = (memory, size)
        return OK, address

    def cudaFree(self, devPtr: int) -> tuple[Error]:
        return (OK if self.device_memory.pop(devPtr, None) else BAD,)

    def cudaHostAlloc(self, size: int, flags: int) -> tuple[Error, int | None]:
        if size <= 0 or not self._is_current():
            return BAD, None
        memory = (ctypes.c_char * size)()
        ctypes.memset(memory, 0x7F, size)  # not zeros
        self.host_memory[ctypes.addressof(memory)] = (memory, size)
        return OK, ctypes.addressof(memory)

    def cudaFreeHost(self, ptr: int) -> tuple[Error]:
        return (OK if self.host_memory.pop(ptr, None) else BAD,)

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[Error, int | None]:
        handle = 0x1000 + len(self.streams)
        self.streams[handle] = _Stream(self._current.device)
        return OK, handle

    def cudaStreamDestroy(self, stream: int) -> tuple[Error]:
        return (OK if self.streams.pop(stream, None) else BAD,)

    def cudaMemcpyAsync(self, dst: int, src: int, count: int, kind: CopyKind, stream: int) -> tuple[Error]:
        on = self.stream(stream)
        there = dst if kind is CopyKind.cudaMemcpyHostToDevice else src
        if on is None or not self.is_within(self.device_memory, there, count):
            return (BAD,)
        here = src if there == dst else dst
        if on.captured is not None and not self.is_within(self.host_memory, here, count):
            on.is_spoilt = True
            return (BAD,)
        on.add(lambda: ctypes.memmove(dst, src, count) and None)
        return (OK,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[Error]:
        on = self.stream(stream)
        if on is None or on.captured is not None:
            return (BAD,)
        while on.queue:
            on.queue.pop(0)()
        return (OK,)

    def cudaStreamBeginCapture(self, stream: int, mode: CaptureMode) -> tuple[Error]:
        on = self.stream(stream)
        if on is None or on.captured is not None:
            return (BAD,)
        on.captured, on.is_spoilt = [], self.refuses_capture
        return (OK,)

    def cudaStreamEndCapture(self, stream: int) -> tuple[Error, int | None]:
        on = self.stream(stream)
        if on is None or on.captured is None:
            return BAD, None
        work, on.captured = on.captured, None
        if on.is_spoilt:
            self.last_error = Error.cudaErrorStreamCaptureInvalidated
            return Error.cudaErrorStreamCaptureInvalidated, None
        self.graphs[handle := 0x2000 + len(self.graphs)] = work
        return OK, handle

    def cudaGraphInstantiate(self, graph: int, flags: int) -> tuple[Error, int | None]:
        if graph not in self.graphs:
            return BAD, None
        if self.has_no_room_for_graphs:
            self.last_error = Error.cudaErrorMemoryAllocation
            return Error.cudaErrorMemoryAllocation, None
        self.graphs[handle := 0x8000 + len(self.graphs)] = self.graphs[graph]
        return OK, handle

    def cudaGraphDestroy(self, graph: int) -> tuple[Error]:
        self.graphs[graph] = []
        return (OK,)

    def cudaGraphExecDestroy(self, graphExec: int) -> tuple[Error]:
        return self.cudaGraphDestroy(graphExec)

    def cudaGraphLaunch(self, graphExec: int, stream: int) -> tuple[Error]:
        on = self.stream(stream)
        if on is None or not self.graphs.get(graphExec):
            return (BAD,)
        self.launches += 1
        on.queue.extend(self.graphs[graphExec])
        return (OK,)

    def cudaGetLastError(self) -> tuple[Error]:
        error, self.last_error = self.last_error, OK
        return (error,)

    def stream(self, handle: int) -> _Stream | None:
        on = self.streams.get(handle)
        return on if on is not None and on.device == getattr(self._current, "device", None) else None

    def _is_current(self) -> bool:
        return 0 <= getattr(self._current, "device", -1) < self.devices

    def is_within(self, memories: dict[int, Any], address: int, count: int) -> bool:
        return any(start <= address and address + count <= start + size for start, (_, size) in memories.items())
