"""One GPU and one stream on it, through NVIDIA's own binding of the CUDA runtime (`cuda-python`).

It is imported when a GPU is asked for, not before. Addresses are plain numbers; memory is freed with what holds it.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from proteus.deployment import DeploymentError

Array = NDArray[Any]
_NON_BLOCKING = 1  # cudaStreamNonBlocking: does not wait for the default stream
_ON_EVERY_DEVICE = 1  # cudaHostAllocPortable


class CudaError(RuntimeError):
    """The CUDA runtime refused something; the text has its own name for it."""


class Memory:
    """Bytes on the GPU. The runtime aligns them to 256."""

    def __init__(self, cuda: Any, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.address = int(_done(cuda, cuda.cudaMalloc(max(num_bytes, 1))))
        weakref.finalize(self, cuda.cudaFree, self.address).atexit = False


class CudaGraph:
    """Work that was captured, to be launched as one."""

    def __init__(self, cuda: Any, graph: Any) -> None:
        try:
            self.handle = _done(cuda, cuda.cudaGraphInstantiate(graph, 0))
        finally:
            cuda.cudaGraphDestroy(graph)
        weakref.finalize(self, cuda.cudaGraphExecDestroy, self.handle).atexit = False


class CudaDevice:
    """Work of one stream runs in order; a thread calls `use` before its own."""

    def __init__(self, number: int) -> None:
        """Raises DeploymentError where there is no such GPU, or nothing to reach it with."""
        self.number, self._cuda = number, _runtime()
        self._check_there()
        self.use()
        self._stream = self._do(self._cuda.cudaStreamCreateWithFlags(_NON_BLOCKING))
        weakref.finalize(self, self._cuda.cudaStreamDestroy, self._stream).atexit = False

    @property
    def stream(self) -> int:
        """As other libraries take it."""
        return int(self._stream)

    @property
    def sm(self) -> int:
        """Compute capability x 10."""
        names = self._cuda.cudaDeviceAttr
        parts = (names.cudaDevAttrComputeCapabilityMajor, names.cudaDevAttrComputeCapabilityMinor)
        major, minor = (int(self._do(self._cuda.cudaDeviceGetAttribute(part, self.number))) for part in parts)
        return 10 * major + minor

    def use(self) -> None:
        """Every thread has a device of its own that it speaks to."""
        self._do(self._cuda.cudaSetDevice(self.number))

    def allocate(self, num_bytes: int) -> Memory:
        self.use()
        return Memory(self._cuda, num_bytes)

    def pinned(self, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> Array:
        """Zeros of the host that the GPU reads and writes itself."""
        self.use()
        num_bytes = max(int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize, 1)
        address = int(self._do(self._cuda.cudaHostAlloc(num_bytes, _ON_EVERY_DEVICE)))
        held = (ctypes.c_char * num_bytes).from_address(address)
        weakref.finalize(held, self._cuda.cudaFreeHost, address).atexit = False
        ctypes.memset(address, 0, num_bytes)
        array: Array = np.ndarray(shape, dtype, buffer=memoryview(held).cast("B"))  # keeps `held`
        return array

    def copy_in(self, memory: Memory, array: Array) -> None:
        """Begins a copy; `array` must stay as it is until `synchronize`."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._do(self._cuda.cudaMemcpyAsync(memory.address, array.ctypes.data, array.nbytes, kind, self._stream))

    def copy_out(self, array: Array, memory: Memory) -> None:
        """Begins a copy, which is there after `synchronize`."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._do(self._cuda.cudaMemcpyAsync(array.ctypes.data, memory.address, array.nbytes, kind, self._stream))

    def synchronize(self) -> None:
        self._do(self._cuda.cudaStreamSynchronize(self._stream))

    def capture(self, begin: Callable[[], None]) -> CudaGraph | None:
        """The work that `begin` puts on the stream, without running it; None where something in it cannot be held."""
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._do(self._cuda.cudaStreamBeginCapture(self._stream, mode))
        try:
            try:
                begin()
            finally:
                error, graph = self._cuda.cudaStreamEndCapture(self._stream)
            return CudaGraph(self._cuda, self._do((error, graph)))
        except Exception:  # of whoever puts work on the stream
            self._cuda.cudaGetLastError()  # or whoever asks for it next would take it for their own
            return None

    def launch(self, graph: CudaGraph) -> None:
        self._do(self._cuda.cudaGraphLaunch(graph.handle, self._stream))

    def _do(self, answer: tuple[Any, ...]) -> Any:
        return _done(self._cuda, answer)

    def _check_there(self) -> None:
        error, count = self._cuda.cudaGetDeviceCount()
        if error != self._cuda.cudaError_t.cudaSuccess or self.number >= count:
            raise DeploymentError(
                f"there is no GPU {self.number} here ({error.name}, {count or 0} seen)",
                fix="correct the device in [gpu], give the container its GPUs, or serve without --hardware gpu",
            )


def _runtime() -> Any:
    try:
        return import_module("cuda.bindings.runtime")
    except ImportError as error:
        raise DeploymentError(
            "the CUDA runtime cannot be reached: `cuda-python` is not installed",
            fix="use the container image of docs/gpu.md, or: pip install cuda-python",
        ) from error


def _done(cuda: Any, answer: tuple[Any, ...]) -> Any:
    """What a function of the runtime gave, behind its error."""
    error, *values = answer
    if error != cuda.cudaError_t.cudaSuccess:
        raise CudaError(f"{error.name}")
    return values[0] if values else None
