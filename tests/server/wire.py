"""Raw requests to the doors over gRPC, for what the client library would never send."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import grpc
from PIL import Image
from tritonclient.grpc import service_pb2, service_pb2_grpc

DEADLINE_S = 30  # a request that hangs fails its test here


def png(width: int = 64, height: int = 64, colour: str = "red") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(buffer, "PNG")
    return buffer.getvalue()


def document(question: str = "What colour is the circle?", pictures: int = 1, **fields: Any) -> bytes:
    """A request document for one question after `pictures` picture parts."""
    content = [{"type": "image"}] * pictures + [{"type": "text", "text": question}]
    return json.dumps({"messages": [{"role": "user", "content": content}], **fields}).encode()


def message(text: bytes, pictures: list[bytes], model: str = "chat") -> Any:
    request = service_pb2.ModelInferRequest(model_name=model)
    tensors = [("request", "BYTES", 1, struct.pack("<I", len(text)) + text)]
    if pictures:
        tensors.append(("image_bytes", "UINT8", sum(map(len, pictures)), b"".join(pictures)))
        lengths = struct.pack(f"<{len(pictures)}q", *map(len, pictures))
        tensors.append(("image_lengths", "INT64", len(pictures), lengths))
    for name, datatype, size, raw in tensors:
        request.inputs.add(name=name, datatype=datatype, shape=[size])
        request.raw_input_contents.append(raw)
    return request


def error_of(grpc_url: str, text: bytes, pictures: list[bytes], *, model: str = "chat", **parameters: str) -> str:
    """The error text that the server answers with; "" if it answers without one."""
    request = message(text, pictures, model)
    for name, value in parameters.items():
        request.parameters[name].string_param = value
    with grpc.insecure_channel(grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for event in stub.ModelStreamInfer(iter([request]), timeout=DEADLINE_S):
            if event.error_message:
                return event.error_message
    return ""
