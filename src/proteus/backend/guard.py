"""One guard around every request: an exception becomes that request's error and nobody else's.

An exception that leaves an async decoupled `execute` sends no response, and its client waits for ever. The text of an
error that is not ours is fixed; its traceback goes to the server's log only.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import triton_python_backend_utils as pb_utils

from proteus.backend.tensors import Array, tensors
from proteus.errors import InternalError, ProteusError, Unavailable

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Responses:
    """The stream of responses to one request of a decoupled model; exactly one of them is final."""

    def __init__(self, request: Any) -> None:
        self._sender = request.get_response_sender()
        self._closed = False

    def send(self, arrays: Mapping[str, Array], *, final: bool) -> None:
        response = pb_utils.InferenceResponse(tensors(arrays))
        self._closed = self._closed or final
        self._sender.send(response, flags=FINAL if final else 0)

    def close(self) -> None:
        """End the stream without another response."""
        self._closed = True
        self._sender.send(flags=FINAL)

    def fail(self, error: ProteusError) -> None:
        """End the stream with an error, unless it has ended."""
        if not self._closed:
            self._closed = True
            self._sender.send(_response(error), flags=FINAL)

    def is_cancelled(self) -> bool:
        """Whether the client gave up before the end; asks the server, so not for every token.

        Triton frees what it would look at with the final response, so after that nothing is asked.
        """
        return not self._closed and bool(self._sender.is_cancelled())


@contextmanager
def responding(request: Any) -> Iterator[Responses]:
    """Responses to `request`; whatever the block raises ends them with an error. A block may leave them open."""
    responses = Responses(request)
    try:
        yield responses
    except Exception as error:
        responses.fail(known(error))
    except asyncio.CancelledError:
        responses.fail(Unavailable("the server is stopping", fix="try again later"))
        raise


def answer_each(requests: Sequence[Any], answer: Callable[[Any], Mapping[str, Array]]) -> list[Any]:
    """One response per request, in order; a request that fails leaves its neighbours of the batch alone."""
    return [_answer(request, answer) for request in requests]


def known(error: Exception) -> ProteusError:
    """An error whose text a client may see; anything else is logged and becomes InternalError."""
    if isinstance(error, ProteusError):
        return error
    pb_utils.Logger.log_error("".join(traceback.format_exception(error)))
    return InternalError()


def _answer(request: Any, answer: Callable[[Any], Mapping[str, Array]]) -> Any:
    try:
        return pb_utils.InferenceResponse(tensors(answer(request)))
    except Exception as error:
        return _response(known(error))


def _response(error: ProteusError) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
