"""Requests as they go over the wire, whatever is in them: what the client library would never send."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from proteus.client.channel import CHANNEL_OPTIONS, in_plain_words
from proteus.client.wire import Model, StreamReader, add_tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """For a door."""

    document: bytes
    pictures: Sequence[bytes] = ()
    lengths: Sequence[int] | None = None  # else those of the pictures
    parameters: Mapping[str, str] = field(default_factory=dict)
    model: Model = "chat"

    def message(self) -> Any:
        request = service_pb2.ModelInferRequest(model_name=self.model)
        add_tensor(request, "request", "BYTES", 1, struct.pack("<I", len(self.document)) + self.document)
        if self.pictures:
            data = b"".join(self.pictures)
            lengths = list(map(len, self.pictures)) if self.lengths is None else list(self.lengths)
            add_tensor(request, "image_bytes", "UINT8", len(data), data)
            add_tensor(request, "image_lengths", "INT64", len(lengths), struct.pack(f"<{len(lengths)}q", *lengths))
        for name, value in self.parameters.items():
            request.parameters[name].string_param = value
        return request


async def send(url: str, raw: Raw, timeout_s: float) -> Mapping[str, Any]:
    """The report that ends the answer; over a connection of its own. Raises ClientError."""
    async with grpc.aio.insecure_channel(url, options=CHANNEL_OPTIONS) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        reader = StreamReader[None]()
        try:
            async for event in stub.ModelStreamInfer(iter([raw.message()]), timeout=timeout_s):
                reader.add(event)
        except grpc.RpcError as error:
            raise in_plain_words(error, url, timeout_s) from None
    return reader.report()
