"""Triton's messages: a document and tensors into a request, tensors out of a response, a stream into its items."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeVar, get_args

from tritonclient.grpc import service_pb2

from proteus import clock
from proteus.client.errors import InvalidInput, ServerError

Model = Literal["chat", "draw"]  # the doors: what a client calls
MODELS: tuple[Model, ...] = get_args(Model)
LENGTH_BYTES = 4  # before each string
Item = TypeVar("Item")


def document_request(model: Model, document: Mapping[str, Any]) -> Any:
    """The `ModelInferRequest` with the document as its tensor `request`; raises `InvalidInput`."""
    request = service_pb2.ModelInferRequest(model_name=model)
    add_tensor(request, "request", "BYTES", 1, _string(_utf8(document)))
    return request


def stamp(request: Any) -> None:
    """Let the document of a `document_request`, which must have a field, say that it is sent now.

    Not where the machine has no name for its clock.
    """
    if (name := clock.clock_name()) is not None:
        document = request.raw_input_contents[0][LENGTH_BYTES:]
        sent = json.dumps({"clock": name, "ns": clock.now_ns()}).encode()
        request.raw_input_contents[0] = _string(document[:-1] + b', "sent": ' + sent + b"}")


def replace_field(request: Any, name: str, value: object) -> None:
    """In the document of a `document_request`."""
    document = json.loads(request.raw_input_contents[0][LENGTH_BYTES:])
    request.raw_input_contents[0] = _string(_utf8(document | {name: value}))


def stop_request(model: Model, request_id: str, cache_scope: str, tenant: str) -> Any:
    """The `ModelInferRequest` that stops another of the same model."""
    return document_request(model, {"stop": {"request_id": request_id, "cache_scope": cache_scope, "tenant": tenant}})


def add_tensor(request: Any, name: str, datatype: str, size: int, raw: bytes) -> None:
    request.inputs.add(name=name, datatype=datatype, shape=[size])
    request.raw_input_contents.append(raw)


def _string(text: bytes) -> bytes:
    """One element of a STRING tensor."""
    return struct.pack("<I", len(text)) + text


def _utf8(document: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(document, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidInput("the text holds a character that is not Unicode: decode it as UTF-8 first") from None
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"messages and options must be plain JSON values: {error}") from None


def read_tensors(response: Any) -> dict[str, Any]:
    """Output name -> str for a STRING [1], tuple of int for an INT32 [n], bytes for a UINT8 [n].

    An empty output is left out.
    """
    tensors: dict[str, Any] = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        if not raw:
            continue
        if output.datatype == "BYTES":
            tensors[output.name] = raw[LENGTH_BYTES:].decode("utf-8")
        elif output.datatype == "INT32":
            tensors[output.name] = struct.unpack(f"<{len(raw) // 4}i", raw)
        elif output.datatype == "UINT8":
            tensors[output.name] = raw
    return tensors


class StreamReader(Generic[Item]):
    """Collects one stream: `add` every message. By itself it keeps the report alone."""

    def __init__(self) -> None:
        self._report: dict[str, Any] | None = None

    def add(self, message: Any) -> Item | None:
        """The item in a `ModelStreamInferResponse`, None if it holds none; raises `ServerError`."""
        if message.error_message:
            raise ServerError.parse(message.error_message)
        tensors = read_tensors(message.infer_response)
        if tensors.get("report"):
            self._report = json.loads(tensors["report"])
        return self._item(tensors)

    def report(self) -> dict[str, Any]:
        """What ended the stream; raises `ServerError` when it ended without."""
        if self._report is None:
            raise ServerError("incomplete", "the stream ended before the answer was complete", fix="ask again")
        return self._report

    def _item(self, tensors: Mapping[str, Any]) -> Item | None:
        return None
