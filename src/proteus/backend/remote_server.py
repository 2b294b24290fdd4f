"""One encoder server: its connection, what it serves, and its failures as our errors.

What a server is, is asked once for each connection: one that was replaced is never taken for the one before it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from random import random
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from proteus.backend.failures import TRY_AGAIN, revive
from proteus.backend.remote_wire import digest
from proteus.contract import CONNECTOR, IMAGE_TOKENS, VISION_ENCODER
from proteus.errors import DeadlineExceeded, InternalError, ProteusError, Unavailable

MAX_MESSAGE_BYTES = 2**31 - 1  # the limits on pictures are the door's to state
OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # how long one attempt to connect may take
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),  # a restarted server is found within a second
    ("grpc.keepalive_time_ms", 310_000),  # Triton takes pings closer than 300 s apart for abuse
    ("grpc.keepalive_timeout_ms", 5_000),  # on Linux also how long what was sent may stay unacknowledged
    ("grpc.enable_retries", 0),  # a second time is the pool's to decide
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
REST_S = 5.0  # of a server that failed or took too long: others go first
REVISION = "revision"  # parameter of image_tokens
READY = grpc.ChannelConnectivity.READY
# Without an answer of the model: the connection broke, or the server was about to end.
BROKEN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
ABSENT = {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND}
Metadata = tuple[tuple[str, str], ...]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the visual tokens must be of, to be of use here."""

    revision: str  # of the checkpoint
    shape: tuple[int, int]  # of a picture's visual tokens, (N, D)


@dataclass(frozen=True, slots=True)
class Deadline:
    """Of one picture."""

    at_s: float  # of the loop's clock
    limit: str  # whose it is

    def left_s(self) -> float:
        """Raises DeadlineExceeded where nothing is."""
        left_s = self.at_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise self.passed()
        return left_s

    def passed(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            "a picture was not encoded in time", limit=self.limit, fix="allow more time, or try again later"
        )


class RemoteServer:
    """At one address, for one event loop, which must be running."""

    def __init__(self, target: str, wanted: Wanted) -> None:
        self.target, self._under_way = target, 0
        self._wanted = wanted
        self._channel = grpc.aio.insecure_channel(target, options=OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._encoder = ""  # of this connection; "": not asked yet
        self._is_other = False  # at this connection there is another checkpoint
        self._asking = asyncio.Lock()
        self._rests_until_s = 0.0
        self._is_lost = False
        self.is_connected()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """From the choice of this server on: also while it is connected to and asked what it is."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    def is_connected(self) -> bool:
        """And what is not is told to connect; what is known of it holds no more."""
        if (state := self._channel.get_state(try_to_connect=True)) is not READY:
            self._encoder, self._is_other = "", False
        return state is READY

    def order(self) -> tuple[bool, bool, bool, int, float]:
        """The least one is asked first; of equals any, for other doors count what is under way for themselves."""
        away, rests = not self.is_connected(), self._rests_until_s > time.monotonic()
        return self._is_other, rests, away, self._under_way, random()

    async def encoder(self, deadline: Deadline) -> str:
        """Names what encodes there; raises Unavailable where it is of no use here."""
        if self.is_connected() and self._encoder:
            return self._encoder
        async with self._asking:
            if self._is_other:
                raise _another_checkpoint()
            if not self._encoder:
                self._encoder = await self._ask(deadline)
            return self._encoder

    async def infer(self, request: Any, metadata: Metadata, deadline: Deadline) -> Any:
        """Its answer; raises ProteusError. Who cancels it cancels it there too."""
        answer = await self._call(self._stub.ModelInfer, request, deadline, metadata)
        self._back()
        return answer

    async def close(self) -> None:
        await self._channel.close()

    async def _ask(self, deadline: Deadline) -> str:
        """Version and configurations, as they are now."""
        named = (IMAGE_TOKENS, VISION_ENCODER, CONNECTOR)
        asked = [service_pb2.ModelConfigRequest(name=model.name) for model in named]
        server, image_tokens, *encoding = await asyncio.gather(
            self._call(self._stub.ServerMetadata, service_pb2.ServerMetadataRequest(), deadline),
            *(self._call(self._stub.ModelConfig, one, deadline) for one in asked),
        )
        self._check(image_tokens.config)
        self._back()
        return digest(server.version, [answer.config for answer in encoding])

    def _check(self, image_tokens: Any) -> None:
        parameters: Mapping[str, Any] = image_tokens.parameters
        revision = parameters[REVISION].string_value if REVISION in parameters else "none"
        shapes = [tuple(output.dims) for output in image_tokens.output if output.name == "visual_tokens"]
        wanted = self._wanted
        if revision != wanted.revision or shapes != [wanted.shape]:
            self._lost(f"has revision {revision}, visual tokens {shapes}; wanted {wanted.revision}, {wanted.shape}")
            self._is_other = True
            raise _another_checkpoint()

    async def _call(self, method: Any, request: Any, deadline: Deadline, metadata: Metadata = ()) -> Any:
        try:
            return await method(request, timeout=deadline.left_s(), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise self._revived(error, deadline) from error

    def _revived(self, error: grpc.aio.AioRpcError, deadline: Deadline) -> ProteusError:
        """A model's error as any model's; of what gRPC says of itself, nothing goes to clients."""
        code, text = error.code(), error.details() or ""
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            self._rests_until_s = time.monotonic() + REST_S
            return deadline.passed()
        known = revive(text, IMAGE_TOKENS.name)
        if isinstance(known, InternalError) and code in BROKEN:
            self._lost(f"does not answer: {text}")
            return Unavailable("no encoder server answers", fix=TRY_AGAIN)
        if isinstance(known, InternalError) and code in ABSENT:
            self._lost(f"has no image_tokens: {text}")
            return Unavailable(
                "an encoder server has no image_tokens", fix="start it with `proteus serve --pool encoder`"
            )
        if isinstance(known, InternalError | Unavailable):
            # Who fails at once has the least to do: without a rest, a broken GPU would draw every picture to itself.
            self._rests_until_s = time.monotonic() + REST_S
            log.error("encoder server %s answered: %s", self.target, text)
        return known

    def _lost(self, why: str) -> None:
        """Said once, until it is back."""
        self._rests_until_s = time.monotonic() + REST_S
        if not self._is_lost:
            self._is_lost = True
            log.warning("encoder server %s %s", self.target, why)

    def _back(self) -> None:
        if self._is_lost:
            self._is_lost = False
            log.warning("encoder server %s is back", self.target)


def _another_checkpoint() -> Unavailable:
    return Unavailable(
        "an encoder server serves another checkpoint than this server",
        limit="the revision of the checkpoint, and the shape of its visual tokens",
        fix="serve both from one export; the server's log names the encoder server",
    )
