"""One guard around every request: an exception becomes that request's error and nobody else's.

An exception that leaves an async decoupled `execute` sends no response, and its client waits for ever. The text of an
error that is not ours is fixed; its traceback goes to the server's log only.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import triton_python_backend_utils as pb_utils

from proteus.backend.heartbeat import STANDSTILL_S, end_process
from proteus.backend.tensors import Array, tensors
from proteus.errors import InternalError, ProteusError, Unavailable

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
ASKING = ThreadPoolExecutor(2, thread_name_prefix="asking")


class Responses:
    """The stream of responses to one request of a decoupled model; exactly one of them is final."""

    def __init__(self, request: Any) -> None:
        self._sender = request.get_response_sender()
        self._closed = False

    def send(self, arrays: Mapping[str, Array], *, final: bool) -> None:
        response = pb_utils.InferenceResponse(tensors(arrays))
        if final:
            self._end(response)
        else:
            self._sender.send(response)

    def close(self) -> None:
        """End the stream without another response."""
        self._end()

    def fail(self, error: ProteusError) -> None:
        """End the stream with an error, unless it has ended."""
        if not self._closed:
            self._end(_response(error))

    def is_cancelled(self) -> bool:
        """Whether the client gave up before the end; asks the server, so not for every token.

        Triton frees what it would look at with the final response, so after that nothing is asked.
        """
        return not self._closed and bool(self._sender.is_cancelled())

    def _end(self, *last: Any) -> None:
        self._closed = True
        self._send_last(*last)

    def _send_last(self, *last: Any) -> None:
        self._sender.send(*last, flags=FINAL)


class LoopResponses(Responses):
    """Of an event loop. The server takes up to 10 ms to say whether a client is there: a thread waits for it, and the
    final response waits for that thread. A look that has no thread yet is not waited for, and does not begin any more.
    """

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self._lock = threading.Lock()
        self._num_asking = 0  # looks that have begun
        self._last: tuple[Any, ...] | None = None  # the final response, while it waits …
        self._standstill: TimerHandle | None = None  # … and when it has waited for too long

    async def has_left(self) -> bool:
        """As `is_cancelled`."""
        if self._closed:
            return False
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(ASKING, self._look, loop)

    def _look(self, loop: AbstractEventLoop) -> bool:
        with self._lock:
            if self._closed:
                return False
            self._num_asking += 1
        try:
            return bool(self._sender.is_cancelled())
        finally:
            loop.call_soon_threadsafe(self._looked)

    def _looked(self) -> None:
        with self._lock:
            self._num_asking -= 1
        if self._last is not None and not self._num_asking:
            last, self._last = self._last, None
            if self._standstill is not None:
                self._standstill.cancel()
            super()._send_last(*last)

    def _send_last(self, *last: Any) -> None:
        with self._lock:
            is_looked_at = self._num_asking > 0  # none begins any more: it is closed
        if is_looked_at:
            self._last = last
            self._standstill = asyncio.get_running_loop().call_later(STANDSTILL_S, end_process)
        else:
            super()._send_last(*last)


@contextmanager
def responding(responses: Responses) -> Iterator[None]:
    """Whatever the block raises ends them with an error. A block may leave them open."""
    try:
        yield
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
