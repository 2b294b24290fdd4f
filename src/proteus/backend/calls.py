"""Calls from one model to another (BLS) that hand on parameters, timeout and request id."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from proteus.backend.failures import revive
from proteus.backend.fleet import Context
from proteus.backend.tensors import Array, read_outputs, tensors
from proteus.contract import ModelSpec
from proteus.errors import InternalError, ProteusError, Unavailable

SILENCE_S = 2.0  # between two responses of a stream, before its model is asked whether it lives
Item = dict[str, Array] | ProteusError | None  # outputs of a response; how the stream ended, None for well


async def call(model: ModelSpec, inputs: Mapping[str, Array], context: Context) -> dict[str, Array]:
    """Outputs of a model that answers once, as copies; raises the model's error."""
    try:
        return _outputs(model, await _request(model, inputs, context).async_exec())
    except pb_utils.TritonModelException as error:
        raise _revived(model, str(error)) from error


async def stream(
    model: ModelSpec, inputs: Mapping[str, Array], context: Context, ping: Callable[[], Awaitable[None]]
) -> AsyncIterator[dict[str, Array]]:
    """Outputs of each response of a decoupled model, as copies; raises the model's error.

    Triton 2.51 gives a blocking iterator, so a thread reads it, to its end even when nobody listens any more. It says
    nothing when the model's process dies: after some silence, `ping` must raise for a model that is gone.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[Item] = asyncio.Queue()

    def deliver(item: Item) -> None:
        loop.call_soon_threadsafe(arrived.put_nowait, item)

    try:
        responses = await _request(model, inputs, context).async_exec(decoupled=True)
    except pb_utils.TritonModelException as error:
        raise _revived(model, str(error)) from error
    # A daemon: the iterator of a dead model never ends, and must not keep this process.
    threading.Thread(target=_pump, args=(model, responses, deliver), name="pump", daemon=True).start()
    while True:
        try:
            async with asyncio.timeout(SILENCE_S):
                item = await arrived.get()
        except TimeoutError:
            await ping()
            continue
        if item is None:
            return
        if isinstance(item, ProteusError):
            raise item
        yield item


def _pump(model: ModelSpec, responses: Iterable[Any], deliver: Callable[[Item], None]) -> None:
    end: ProteusError | None = None
    try:
        for response in responses:
            if outputs := _outputs(model, response):
                deliver(outputs)
    except ProteusError as error:
        end = error
    except Exception as error:
        end = _revived(model, str(error))
    deliver(end)


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
    return {name: array.copy() for name, array in read_outputs(response, model.outputs).items()}


def _revived(model: ModelSpec, text: str) -> ProteusError:
    error = revive(text, model.name)
    if isinstance(error, InternalError | Unavailable):
        pb_utils.Logger.log_error(f"{model.name} answered: {text}")
    return error
