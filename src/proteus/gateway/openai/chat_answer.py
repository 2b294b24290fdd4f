"""A server's pieces and report in OpenAI's words: the chunks of a stream, or one completion."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proteus.client.results import Answer, Choice, LikelyToken, Piece, TokenLogprob
from proteus.errors import Unavailable
from proteus.gateway.http.presence import as_json
from proteus.gateway.openai.chat_request import ChatWish

FINGERPRINT_CHARS = 12  # of the checkpoint's revision


class ChatAnswer:
    """Of one request; an `account` is its object `proteus`."""

    def __init__(self, wish: ChatWish, request_id: str, model: str, *, revision: str) -> None:
        self._wish = wish
        self._head = {
            "id": f"chatcmpl-{request_id}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"fp_{revision[:FINGERPRINT_CHARS]}",
            **({} if wish.service_tier is None else {"service_tier": wish.service_tier}),
        }
        self._before_choices = as_json({"object": "chat.completion.chunk", **self._head})[:-1] + b',"choices":'
        self._after_choices = b',"usage":null}' if wish.include_usage else b"}"
        self._begun: set[int] = set()  # choices whose role was told

    def chunks(self, piece: Piece) -> Iterator[bytes]:
        """As JSON, what a piece adds; nothing, while a character is incomplete and no logprobs are wanted."""
        if piece.text or (piece.logprobs and self._wish.request.logprobs):
            yield from self._begin(piece.index)
            yield self._chunk(piece.index, {"content": piece.text}, logprobs=piece.logprobs)

    def last_chunks(self, answer: Answer, account: Mapping[str, Any]) -> Iterator[bytes]:
        """Why each choice ends, and the usage where it is wanted."""
        for index, choice in enumerate(answer.choices):
            yield from self._begin(index)
            yield self._chunk(index, {}, finish_reason=choice.finish_reason)
        if self._wish.include_usage:
            told = as_json({"usage": usage(answer), "proteus": account})
            yield b"".join((self._before_choices, b"[],", told[1:]))

    def completion(self, answer: Answer, account: Mapping[str, Any]) -> bytes:
        """As JSON, made in pieces: the event loop waits for a call in C to its end."""
        document = {"object": "chat.completion", **self._head, "usage": usage(answer), "proteus": account}
        choices = b",".join(self._choice(index, choice) for index, choice in enumerate(answer.choices))
        return b"".join((as_json(document)[:-1], b',"choices":[', choices, b"]}"))

    def _choice(self, index: int, choice: Choice) -> bytes:
        document = {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None, "annotations": []},
            "finish_reason": choice.finish_reason,
        }
        told = b"null"
        if self._wish.request.logprobs:
            told = (
                b'{"content":[' + b",".join(as_json(_entry(entry)) for entry in choice.logprobs) + b'],"refusal":null}'
            )
        return b"".join((as_json(document)[:-1], b',"logprobs":', told, b"}"))

    def _begin(self, index: int) -> Iterator[bytes]:
        if index not in self._begun:
            self._begun.add(index)
            yield self._chunk(index, {"role": "assistant", "content": "", "refusal": None})

    def _chunk(
        self,
        index: int,
        delta: Mapping[str, Any],
        *,
        logprobs: Sequence[TokenLogprob] = (),
        finish_reason: str | None = None,
    ) -> bytes:
        told = self._logprobs(logprobs) if logprobs else None
        choice = {"index": index, "delta": delta, "logprobs": told, "finish_reason": finish_reason}
        return b"".join((self._before_choices, b"[", as_json(choice), b"]", self._after_choices))

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not self._wish.request.logprobs:
            return None
        return {"content": [_entry(entry) for entry in entries], "refusal": None}


def usage(answer: Answer) -> dict[str, Any]:
    """Counted as the language model saw them."""
    used = answer.usage
    prompt_tokens = used.text_tokens + used.visual_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": used.output_tokens,
        "total_tokens": prompt_tokens + used.output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": used.cached_tokens,
            "text_tokens": used.text_tokens,
            "image_tokens": used.visual_tokens,
        },
    }


def check_complete(answer: Answer) -> None:
    """`cancelled` is for who left; raises Unavailable where the server ended it and the client is still there."""
    if any(choice.finish_reason == "cancelled" for choice in answer.choices):
        raise Unavailable("the server ended the answer before it was complete", fix="ask again")


def _entry(entry: TokenLogprob) -> dict[str, Any]:
    return {**_token(entry), "top_logprobs": [_token(likely) for likely in entry.top_logprobs]}


def _token(entry: LikelyToken) -> dict[str, Any]:
    return {"token": entry.token, "logprob": entry.logprob, "bytes": list(entry.bytes)}
