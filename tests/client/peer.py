"""A gRPC peer that speaks Triton's streaming protocol, so that the client's own half is tested byte for byte.

What its model `chat` answers is chosen by the text of the question: see `SCRIPTS`; `draw` is in draw_scripts.py. The
product itself is tested in tests/server.
"""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.client.draw_scripts import DRAW_CONTRACT, DRAW_PARAMETERS, draw_script
from tests.client.tensors import output, string

REPORT = {
    "finish_reason": "stop",
    "usage": {"text_tokens": 9, "visual_tokens": 36, "output_tokens": 3, "cached_tokens": 8},
    "stages_ms": {"ingress": 0.5, "prefill": 12.0, "decode": 7.25, "total": 19.75},
    "ingress_ms": {"transport": 0.25, "parse": 0.125},
    "ttft_ms": 12.5,
    "inter_token_ms": {"mean": 3.5, "max": 4.25},
    "caches": {
        "processor": {"lookups": 0, "hits": 0, "saved_ms": 0.0},
        "encoder": {"lookups": 2, "hits": 1, "saved_ms": 34.5},
        "prefix": {"lookups": 1, "hits": 1, "saved_ms": 1.25, "tokens": 8},
    },
    "media": [
        {"size": "1 MP", "bucket": "96x96 tiles", "tier": "auto", "downscaled": False, "visual_tokens": 36},
        {"size": "0.25 MP", "bucket": "96x96 tiles", "tier": "low", "downscaled": True, "visual_tokens": 36},
    ],
    "pictures": ["encoded", "cached"],
    "choices": [{"index": 0, "finish_reason": "stop", "output_tokens": 3}],
}
LOGPROBS = [
    {
        "token": "\ufffd",
        "logprob": -0.5,
        "bytes": [195],
        "top_logprobs": [{"token": "a", "logprob": -1.5, "bytes": [97]}],
    }
]
PARAMETERS = {  # of the model `chat`; `audio.max_loudness` is a limit that this version has never heard of
    "deployment": "../deployments/demo.toml",
    "image.formats": '["png", "jpeg"]',
    "image.max_bytes": "10485760",
    "image.animation": "first_frame",
    "video.formats": "[]",
    "video.max_seconds": "60.0",
    "tiers.low.max_pixels": "262144",
    "fetch.enabled": "false",
    "audio.max_loudness": "11",
}
CONTRACT = {
    "image": {"formats": ["png", "jpeg"], "max_bytes": 10_485_760, "animation": "first_frame"},
    "video": {"formats": [], "max_seconds": 60.0},
    "tiers": {"low": {"max_pixels": 262_144}},
    "fetch": {"enabled": False},
    "audio": {"max_loudness": 11},
    "draw": DRAW_CONTRACT,
}
REFUSAL = "queue_full: 64 requests are waiting; limit: [llm] max_queue = 64; fix: try again later"


def event(
    text: str,
    token_ids: tuple[int, ...],
    report: dict[str, Any] | None = None,
    *,
    index: int | None = None,
    logprobs: list[Any] | None = None,
) -> Any:
    """One response message of the `chat` model."""
    response = service_pb2.ModelInferResponse(model_name="chat")
    output(response, "text", "BYTES", 1, string(text))
    output(response, "token_ids", "INT32", len(token_ids), struct.pack(f"<{len(token_ids)}i", *token_ids))
    if index is not None:
        output(response, "index", "INT32", 1, struct.pack("<i", index))
    if logprobs is not None:
        output(response, "logprobs", "BYTES", 1, string(json.dumps(logprobs)))
    if report is not None:
        output(response, "report", "BYTES", 1, string(json.dumps(report)))
    return service_pb2.ModelStreamInferResponse(infer_response=response)


class Peer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Keeps the requests it saw, and is `ready` or not; `cancelled` is set once a stream was cancelled by its client.

    `sent` holds of each document when it was sent, which is no part of `documents`; None: it did not say.
    """

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.documents: list[dict[str, Any]] = []
        self.sent: list[dict[str, Any] | None] = []
        self.published = {"chat": dict(PARAMETERS), "draw": dict(DRAW_PARAMETERS)}  # by model: those that there are
        self.cancelled = threading.Event()
        self.ready = True
        unlimited = [("grpc.max_receive_message_length", -1)]  # as Triton's
        self._server = grpc.server(ThreadPoolExecutor(max_workers=40), options=unlimited)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self.url = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(grace=None).wait()

    def ModelStreamInfer(self, request_iterator: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        for request in request_iterator:
            document = json.loads(request.raw_input_contents[0][4:])
            self.requests.append(request)
            self.sent.append(document.pop("sent", None))
            self.documents.append(document)
            finished: list[bool] = []
            context.add_callback(lambda finished=finished: None if finished else self.cancelled.set())
            yield from self._script(request.model_name, document)(self, document, context)
            finished.append(True)

    def ServerReady(self, request: Any, context: grpc.ServicerContext) -> Any:
        return service_pb2.ServerReadyResponse(ready=self.ready)

    def ModelReady(self, request: Any, context: grpc.ServicerContext) -> Any:
        return service_pb2.ModelReadyResponse(ready=request.name in self.published)

    def ModelConfig(self, request: Any, context: grpc.ServicerContext) -> Any:
        if request.name not in self.published:
            context.abort(grpc.StatusCode.NOT_FOUND, _unknown_words(request.name))
        response = service_pb2.ModelConfigResponse()
        for key, text in self.published[request.name].items():
            response.config.parameters[key].string_value = text
        return response

    def _script(self, model: str, document: dict[str, Any]) -> Callable[..., Iterator[Any]]:
        if model not in self.published:
            return lambda *_: iter([service_pb2.ModelStreamInferResponse(error_message=_unknown_words(model))])
        if model == "draw":
            return draw_script(document)
        return _stop if "messages" not in document else SCRIPTS.get(_question(document), _answer)


@contextmanager
def peer_to_stop() -> Iterator[tuple[str, Callable[[], None]]]:
    """Address of a peer in a process of its own, and how to stop that process in the midst of anything."""
    code = "from tests.client.peer import Peer; print(Peer().url, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), lambda: process.send_signal(signal.SIGSTOP)
        finally:
            process.kill()


def _unknown_words(model: str) -> str:
    return f"Request for unknown model: '{model}' is not found"


def _answer(peer: Peer, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
    """Echoes the question, word by word."""
    for number, word in enumerate(_question(document).split()):
        yield event(f"{word} ", (number,))
    yield event("", (99,), REPORT)


def _two_answers(peer: Peer, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
    for text, token_id in (("one ", 1), ("more", 2)):
        for index in (1, 0):
            yield event(f"{index}: {text}", (token_id + index,), index=index, logprobs=LOGPROBS)
    choices = [{"index": index, "finish_reason": reason} for index, reason in enumerate(("stop", "length"))]
    yield event("", (), REPORT | {"choices": choices}, index=0)


def _old_server(peer: Peer, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
    usage = {"text_tokens": 1, "visual_tokens": 0, "output_tokens": 1}
    yield event("one", (1,), {"finish_reason": "length", "usage": usage, "stages_ms": {}})


def _stop(peer: Peer, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
    yield event("", (), {"stopped": int(document["stop"]["request_id"] == "mine")})


def _refuse(peer: Peer, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
    yield service_pb2.ModelStreamInferResponse(error_message=REFUSAL)


def _break_off(peer: Peer, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
    yield event("half", (1,))
    yield service_pb2.ModelStreamInferResponse(error_message="internal: the server could not finish this request")


def _end_early(peer: Peer, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
    yield event("half", (1,))


def _go_away(peer: Peer, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
    yield event("half", (1,))
    context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")


def _end_for_others(peer: Peer, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
    yield event("half", (1,))
    choices = [{"index": 0, "finish_reason": "cancelled", "output_tokens": 1}]
    yield event("", (), REPORT | {"finish_reason": "cancelled", "choices": choices})


def _in_pieces(peer: Peer, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
    """A character that takes two tokens; the first of them adds no text."""
    yield event("", (1,), logprobs=LOGPROBS)
    yield event("\u00e9", (2,), logprobs=LOGPROBS)
    yield event("", (99,), REPORT, logprobs=LOGPROBS)


def _forty_tokens(peer: Peer, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
    for number in range(40):
        yield event("x", (number,), logprobs=LOGPROBS)
    yield event("", (), REPORT)


def _never_end(peer: Peer, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
    yield event("half", (1,))
    peer.cancelled.wait(timeout=20)


SCRIPTS: dict[str, Callable[[Peer, dict[str, Any], grpc.ServicerContext], Iterator[Any]]] = {
    "two answers": _two_answers,
    "old server": _old_server,
    "refuse": _refuse,
    "break off": _break_off,
    "end early": _end_early,
    "go away": _go_away,
    "never end": _never_end,
    "end for others": _end_for_others,
    "in pieces": _in_pieces,
    "forty tokens": _forty_tokens,
}


def _question(document: dict[str, Any]) -> str:
    content = document["messages"][-1]["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
