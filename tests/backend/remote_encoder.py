"""An encoder server without Triton: its gRPC service, whose answers and failures the test decides."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from proteus.backend import remote
from proteus.backend.fleet import Context, EncodedPicture
from proteus.backend.remote import RemoteEncoders
from proteus.backend.remote_server import OPTIONS, Wanted
from proteus.limits_gpu import EncoderPool

REVISION = "00ff"
ROWS, WIDTH = 3, 4
NO_CONTEXT = Context(parameters={})
WANTED = Wanted(revision=REVISION, shape=(ROWS, WIDTH))
SECRET = "10.1.2.3 fell over"
KINDS = {"float32": "FP32", "float64": "FP64", "int64": "INT64"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class FakeEncoder(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """`async with` it; `fails` is what each picture is answered with, (status, text)."""

    def __init__(self, port: int | None = None, *, revision: str = REVISION, version: str = "2.51.0") -> None:
        self.port = port or free_port()
        self.revision, self.version, self.parameters = revision, version, dict[str, str]()
        self.dims = [ROWS, WIDTH]
        self.fails: tuple[grpc.StatusCode, str] | None = None
        self.requests: list[Any] = []
        self.metadata: list[dict[str, str]] = []
        self.asked_what = self.cancelled = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.outputs: dict[str, npt.NDArray[Any]] = {
            "visual_tokens": np.arange(ROWS * WIDTH, dtype=np.float32).reshape(1, ROWS, WIDTH),
            "preprocess_ns": np.array([[1_000, 2_000]]),
            "preprocess_saved_us": np.array([[5]]),
            "encoder_ns": np.array([[2_500, 3_000]]),
            "connector_ns": np.array([[3_000, 3_500]]),
        }
        self._server: grpc.aio.Server | None = None

    @property
    def target(self) -> str:
        return f"ipv4:127.0.0.1:{self.port}"

    async def __aenter__(self) -> FakeEncoder:
        self._server = grpc.aio.server(options=(*OPTIONS, ("grpc.so_reuseport", 0)))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        assert self._server.add_insecure_port(f"127.0.0.1:{self.port}") == self.port
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        self.asked_what += 1
        return service_pb2.ServerMetadataResponse(name="triton", version=self.version)

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        answer = service_pb2.ModelConfigResponse()
        answer.config.name = request.name
        if request.name == "image_tokens":
            if self.revision:
                answer.config.parameters["revision"].string_value = self.revision
            answer.config.output.add(name="visual_tokens", dims=self.dims)
        for name, value in self.parameters.items():
            answer.config.parameters[name].string_value = value
        return answer

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fails is not None:
            await context.abort(*self.fails)
        answer = service_pb2.ModelInferResponse(model_name=request.model_name)
        for name, array in self.outputs.items():
            answer.outputs.add(name=name, datatype=KINDS[array.dtype.name], shape=array.shape)
            answer.raw_output_contents.append(array.tobytes())
        return answer


@asynccontextmanager
async def pool_of(
    *encoders: FakeEncoder, timeout_ms: int = 10_000, max_at_once: int = 4, wanted: Wanted = WANTED
) -> AsyncIterator[RemoteEncoders]:
    """A pool whose name stands for `encoders`; with one, by its address and without a patch."""
    with pytest.MonkeyPatch.context() as patch:
        if len(encoders) > 1:

            async def targets(url: str) -> frozenset[str]:
                return frozenset(encoder.target for encoder in encoders)

            patch.setattr(remote, "_targets", targets)
        limits = EncoderPool(url=f"127.0.0.1:{encoders[0].port}", timeout_ms=timeout_ms, max_at_once=max_at_once)
        made = RemoteEncoders(limits, wanted)
        try:
            yield made
        finally:
            await made.aclose()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 30))


def encode(
    pool: RemoteEncoders, picture: bytes = b"png", context: Context = NO_CONTEXT
) -> Coroutine[Any, Any, EncodedPicture]:
    return pool.image_tokens(picture, b"s" * 32, context, None)


async def until(is_so: Callable[[], object]) -> None:
    while not is_so():
        await asyncio.sleep(0.005)
