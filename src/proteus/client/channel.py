"""What the two clients share: the address, the channel's settings, and gRPC's failures in plain words."""

from __future__ import annotations

import re
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from proteus.client.errors import ClientError, ConnectionFailed, InvalidInput, ServerError, TimedOut

DEFAULT_URL = "127.0.0.1:8001"
MAX_MESSAGE_BYTES = 2**31 - 1  # the limits on pictures are the server's to state
CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # how long one attempt to connect may take
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),  # a restarted server is found within a second
    ("grpc.keepalive_time_ms", 310_000),  # Triton takes pings closer than 300 s apart for abuse
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.enable_http_proxy", 0),
)
_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
_NEVER_CONNECTED = re.compile("failed to connect|resolution failed", re.IGNORECASE)
_ADDRESS = re.compile(r"[^/\s]+:\d{1,5}")


def check_url(url: str) -> str:
    """`url` itself; raises `InvalidInput` unless it is host:port."""
    if not _ADDRESS.fullmatch(url):
        raise InvalidInput(f"{url!r} is no server address: give host:port of the gRPC port, such as {DEFAULT_URL}")
    return url


def stream_of(channel: Any) -> Any:
    """`ModelStreamInfer` for one request: it, and that it is the last, go out at once, and not one after the other."""
    return channel.unary_stream(
        _STREAM,
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
    )


def was_never_connected(error: grpc.RpcError) -> bool:
    """Whether no server got the request."""
    status: Any = error
    return status.code() is grpc.StatusCode.UNAVAILABLE and _NEVER_CONNECTED.search(status.details() or "") is not None


def timed_out(url: str, timeout_s: float | None) -> TimedOut:
    return TimedOut(f"no complete answer from {url} in time: raise timeout_s = {timeout_s} or ask for less")


def in_plain_words(error: grpc.RpcError, url: str, timeout_s: float | None) -> ClientError:
    """What a broken call means to the caller."""
    status: Any = error
    code, details = status.code(), status.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return timed_out(url, timeout_s)
    if was_never_connected(error):
        return ConnectionFailed(f"no server at {url}: start one with `proteus serve`")
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL):
        return ConnectionFailed(f"the server at {url} went away before the answer was complete: ask again")
    if code is grpc.StatusCode.CANCELLED:
        return ConnectionFailed(f"the stream from {url} was cancelled")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return ConnectionFailed(f"what answers at {url} is no Triton gRPC port: the default is {DEFAULT_URL}")
    return ServerError.parse(details)
