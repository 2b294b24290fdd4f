"""Calls from one model to another (BLS) that hand on parameters, timeout and request id.

`async_exec` of Triton 2.51 waits in the event loop's default pool of a few threads: calls that wait there would keep
out the `stop` that makes an end of them. So every call waits in its own thread.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import triton_python_backend_utils as pb_utils

from proteus.backend.failures import revive
from proteus.backend.fleet import Context
from proteus.backend.tensors import Array, read_outputs, tensors
from proteus.backend.threads import Threads
from proteus.contract import ModelSpec
from proteus.errors import InternalError, ProteusError, Unavailable

MAX_CALLS = 16  # at once: half of the threads (32) in which Triton also sends this model's responses
KEEP_S = 2.0
THREADS = Threads("call")

Outputs = dict[str, Array]


class Caller:
    """Calls of one event loop."""

    def __init__(self) -> None:
        self._calls = asyncio.Semaphore(MAX_CALLS)
        # A decoupled call's iterator is kept for KEEP_S. Triton 2.51 drops its own reference a moment later in a thread
        # without Python's lock: were that the last one, arrays would be freed there, and memory corrupted.
        self._kept: deque[Any] = deque()

    def close(self) -> None:
        """Let go of what is kept; after the last call."""
        self._kept.clear()

    async def call(self, model: ModelSpec, inputs: Mapping[str, Array], context: Context) -> Outputs:
        """Outputs of a model that is not decoupled; raises the model's error.

        Triton ends no call that has begun: one that nobody waits for any more keeps its place among MAX_CALLS.
        """
        request = _request(model, inputs, context)
        loop = asyncio.get_running_loop()

        def answer() -> Outputs:
            try:
                return _outputs(model, request.exec())
            finally:
                loop.call_soon_threadsafe(self._calls.release)

        await self._calls.acquire()
        try:
            begun = _begin(model, answer)
        except RuntimeError:  # the system gives no thread
            self._calls.release()
            raise
        return await begun

    async def call_decoupled(self, model: ModelSpec, inputs: Mapping[str, Array], context: Context) -> Outputs:
        """Outputs of the one response of a decoupled model, which must be its last; raises the model's error.

        To wait for a second response can block this whole process: its reader holds one lock while it waits for
        Python's, and a call that begins at that moment holds Python's while it waits for the other.
        """
        request = _request(model, inputs, context)
        loop = asyncio.get_running_loop()

        def answer() -> Outputs:
            responses = request.exec(decoupled=True)
            try:
                return _outputs(model, next(iter(responses)))
            finally:
                self._kept.append(responses)
                loop.call_soon_threadsafe(loop.call_later, KEEP_S, self._drop_oldest)

        return await _begin(model, answer)

    def _drop_oldest(self) -> None:
        if self._kept:
            self._kept.popleft()


def _begin(model: ModelSpec, answer: Callable[[], Outputs]) -> Future[Outputs]:
    """`answer` in a thread of its own; RuntimeError when there is none to be had."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def wait() -> None:
        told: Callable[[Any], None] = done.set_result
        outcome: Outputs | ProteusError
        try:
            outcome = answer()
        except ProteusError as error:
            told, outcome = done.set_exception, error
        except Exception as error:
            told, outcome = done.set_exception, _revived(model, str(error))
        with suppress(RuntimeError):  # the loop is closed: nobody waits for it any more
            loop.call_soon_threadsafe(_end, done, told, outcome)

    THREADS.begin(wait)
    return done


def _end(done: Future[Outputs], told: Callable[[Any], None], outcome: Outputs | ProteusError) -> None:
    if not done.done():  # nobody waits for it any more
        told(outcome)


def _request(model: ModelSpec, inputs: Mapping[str, Array], context: Context) -> Any:
    """What it answers is to lie in host memory: native backends on a GPU leave it there, where numpy cannot read it
    and Triton's response cache cannot keep it.
    """
    return pb_utils.InferenceRequest(
        model_name=model.name,
        request_id=context.request_id,
        inputs=tensors(inputs),
        requested_output_names=[spec.name for spec in model.outputs],
        parameters=dict(context.parameters),
        timeout=context.timeout_us,
        preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0),
    )


def _outputs(model: ModelSpec, response: Any) -> Outputs:
    if response.has_error():
        raise _revived(model, response.error().message())
    return read_outputs(response)


def _revived(model: ModelSpec, text: str) -> ProteusError:
    error = revive(text, model.name)
    if isinstance(error, InternalError | Unavailable):
        pb_utils.Logger.log_error(f"{model.name} answered: {text}")
    return error
