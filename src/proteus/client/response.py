"""Response messages of the `chat` model -> pieces, and at the end the answer."""

from __future__ import annotations

import json
import struct
from types import MappingProxyType
from typing import Any

from proteus.client.errors import ServerError
from proteus.client.results import Answer, Piece, Usage


class AnswerBuilder:
    """Collects one stream: `add` every message, then take `answer()`."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._report: dict[str, Any] | None = None

    def add(self, message: Any) -> Piece | None:
        """The piece in a `ModelStreamInferResponse`, None if it has no text and no token; raises `ServerError`."""
        if message.error_message:
            raise ServerError.parse(message.error_message)
        tensors = read_tensors(message.infer_response)
        if tensors.get("report"):
            self._report = json.loads(tensors["report"])
        text, token_ids = tensors.get("text", ""), tensors.get("token_ids", ())
        if not text and not token_ids:
            return None
        self._text.append(text)
        self._token_ids.extend(token_ids)
        return Piece(text=text, token_ids=token_ids)

    def answer(self) -> Answer:
        """The whole; raises `ServerError` when the stream ended without its report."""
        if self._report is None:
            raise ServerError("incomplete", "the stream ended before the answer was complete", fix="ask again")
        return Answer(
            text="".join(self._text),
            token_ids=tuple(self._token_ids),
            finish_reason=self._report["finish_reason"],
            usage=Usage(**{name: self._report["usage"][name] for name in Usage.__slots__}),
            stages_ms=MappingProxyType(dict(self._report["stages_ms"])),
            pictures=tuple(self._report.get("pictures", ())),
        )


def read_tensors(response: Any) -> dict[str, Any]:
    """Output name -> str for a STRING [1], tuple of int for an INT32 [n]; an empty output is left out."""
    tensors: dict[str, Any] = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        if not raw:
            continue
        if output.datatype == "BYTES":
            tensors[output.name] = raw[4:].decode("utf-8")  # 4 bytes of length go first
        elif output.datatype == "INT32":
            tensors[output.name] = struct.unpack(f"<{len(raw) // 4}i", raw)
    return tensors
