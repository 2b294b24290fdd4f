"""Response messages of the `chat` model -> pieces, and at the end the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from proteus.client.results import Answer, Choice, LikelyToken, Piece, TokenLogprob, Usage
from proteus.client.wire import StreamReader

COUNTS = frozenset(field.name for field in fields(Usage))  # others, of a newer server, are left out


class AnswerBuilder(StreamReader[Piece]):
    """Collects one stream: `add` every message, then take `answer()`."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: dict[int, list[Piece]] = {}  # by the index of their answer

    def _item(self, tensors: Mapping[str, Any]) -> Piece | None:
        """None for an event without text and token."""
        piece = Piece(
            text=tensors.get("text", ""),
            token_ids=tensors.get("token_ids", ()),
            index=tensors.get("index", (0,))[0],
            logprobs=_logprobs(tensors["logprobs"]) if "logprobs" in tensors else (),
        )
        if not piece.text and not piece.token_ids:
            return None
        self._pieces.setdefault(piece.index, []).append(piece)
        return piece

    def answer(self) -> Answer:
        """The whole; raises `ServerError` when the stream ended without its report."""
        report = self.report()
        # None for a request that ended before its answers began, and from a server that knows of one answer only.
        choices = report.get("choices") or [{"index": 0, "finish_reason": report["finish_reason"]}]
        return Answer(
            choices=tuple(self._choice(choice["index"], choice["finish_reason"]) for choice in choices),
            usage=Usage(**{name: count for name, count in report["usage"].items() if name in COUNTS}),
            stages_ms=MappingProxyType(dict(report["stages_ms"])),
            ingress_ms=MappingProxyType(dict(report.get("ingress_ms", {}))),
            ttft_ms=report.get("ttft_ms"),
            inter_token_ms=report.get("inter_token_ms"),
            caches=report.get("caches", {}),
            media=tuple(report.get("media", ())),
            pictures=tuple(report.get("pictures", ())),
        )

    def _choice(self, index: int, finish_reason: str) -> Choice:
        pieces = self._pieces.get(index, [])
        return Choice(
            text="".join(piece.text for piece in pieces),
            token_ids=tuple(token_id for piece in pieces for token_id in piece.token_ids),
            finish_reason=finish_reason,
            logprobs=tuple(entry for piece in pieces for entry in piece.logprobs),
        )


def _logprobs(text: str) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(
            token=entry["token"],
            logprob=entry["logprob"],
            bytes=bytes(entry["bytes"]),
            top_logprobs=tuple(
                LikelyToken(token=likely["token"], logprob=likely["logprob"], bytes=bytes(likely["bytes"]))
                for likely in entry["top_logprobs"]
            ),
        )
        for entry in json.loads(text)
    )
