"""Calls from one model to another (BLS) that hand on parameters, timeout and request id.

`async_exec` of Triton 2.51 waits in the event loop's default pool of a few threads, for a stream until its first
response: calls that wait in a queue would keep out the `stop` that empties it. So every call waits in its own thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import Any

import triton_python_backend_utils as pb_utils

from proteus.backend.failures import revive
from proteus.backend.fleet import Context
from proteus.backend.tensors import Array, read_outputs, tensors
from proteus.contract import ModelSpec
from proteus.errors import InternalError, ProteusError, Unavailable

SILENCE_S = 2.0  # between two responses of a stream, before its model is asked whether it lives
KEEP_S = 2.0
Item = dict[str, Array] | ProteusError | None  # outputs of a response; how the stream ended, None for well


class Caller:
    """Calls of one event loop."""

    def __init__(self) -> None:
        # A stream's iterator is kept for KEEP_S after its end. Triton 2.51 drops its own reference a moment later in a
        # thread without Python's lock: were that the last one, arrays would be freed there, and memory corrupted.
        self._kept: deque[Any] = deque()

    def close(self) -> None:
        """Let go of what is kept; after the last call."""
        self._kept.clear()

    async def call(self, model: ModelSpec, inputs: Mapping[str, Array], context: Context) -> dict[str, Array]:
        """Outputs of a model that answers once; raises the model's error."""
        request = _request(model, inputs, context)

        def wait() -> None:
            try:
                answer.set_result(_outputs(model, request.exec()))
            except ProteusError as error:
                answer.set_exception(error)
            except Exception as error:
                answer.set_exception(_revived(model, str(error)))

        answer: Future[dict[str, Array]] = Future()
        answer.set_running_or_notify_cancel()  # the thread ends it, also when nobody waits any more
        threading.Thread(target=wait, name="call", daemon=True).start()
        return await asyncio.wrap_future(answer)

    async def stream(
        self, model: ModelSpec, inputs: Mapping[str, Array], context: Context, ping: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[list[dict[str, Array]]]:
        """Outputs of the responses of a decoupled model, those that have arrived together; raises the model's error.

        Triton 2.51 gives a blocking iterator, which is read to its end even when nobody listens any more. It says
        nothing when the model's process dies: after some silence, `ping` must raise for a model that is gone.
        """
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Item] = asyncio.Queue()
        request = _request(model, inputs, context)
        # A daemon: the iterator of a dead model never ends, and must not keep this process.
        threading.Thread(target=self._pump, args=(model, request, loop, arrived), name="pump", daemon=True).start()
        while True:
            try:
                async with asyncio.timeout(SILENCE_S):
                    items = [await arrived.get()]
            except TimeoutError:
                await ping()
                continue
            while not arrived.empty():
                items.append(arrived.get_nowait())
            if outputs := [item for item in items if isinstance(item, dict)]:
                yield outputs
            if isinstance(end := items[-1], ProteusError):
                raise end
            if end is None:
                return

    def _pump(
        self, model: ModelSpec, request: Any, loop: asyncio.AbstractEventLoop, arrived: asyncio.Queue[Item]
    ) -> None:
        """Read a whole stream in a thread, handing its responses and its end to the event loop."""
        responses: Any = None
        end: Item = None
        try:
            responses = request.exec(decoupled=True)
            for response in responses:
                if outputs := _outputs(model, response):
                    loop.call_soon_threadsafe(arrived.put_nowait, outputs)
        except ProteusError as error:
            end = error
        except Exception as error:
            end = _revived(model, str(error))
        self._kept.append(responses)
        loop.call_soon_threadsafe(loop.call_later, KEEP_S, self._drop_oldest)
        loop.call_soon_threadsafe(arrived.put_nowait, end)

    def _drop_oldest(self) -> None:
        if self._kept:
            self._kept.popleft()


def _request(model: ModelSpec, inputs: Mapping[str, Array], context: Context) -> Any:
    return pb_utils.InferenceRequest(
        model_name=model.name,
        request_id=context.request_id,
        inputs=tensors(inputs),
        requested_output_names=[spec.name for spec in model.outputs],
        parameters=dict(context.parameters),
        timeout=context.timeout_us,
    )


def _outputs(model: ModelSpec, response: Any) -> dict[str, Array]:
    if response.has_error():
        raise _revived(model, response.error().message())
    return read_outputs(response)


def _revived(model: ModelSpec, text: str) -> ProteusError:
    error = revive(text, model.name)
    if isinstance(error, InternalError | Unavailable):
        pb_utils.Logger.log_error(f"{model.name} answered: {text}")
    return error
