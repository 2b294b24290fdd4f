"""Calls from one model to another (BLS) that hand on parameters, timeout and request id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import Executor
from typing import Any

import triton_python_backend_utils as pb_utils

from proteus.backend.failures import TRY_AGAIN, revive
from proteus.backend.fleet import Context
from proteus.backend.tensors import Array, read_outputs, tensors
from proteus.contract import ModelSpec
from proteus.errors import InternalError, ProteusError, Unavailable


async def call(model: ModelSpec, inputs: Mapping[str, Array], context: Context) -> dict[str, Array]:
    """Outputs of a model that answers once, as copies; raises the model's error."""
    try:
        response = await _request(model, inputs, context).async_exec()
    except pb_utils.TritonModelException as error:
        raise _logged(model, str(error)) from error
    return {name: array.copy() for name, array in _outputs(model, response).items()}


async def stream(
    model: ModelSpec, inputs: Mapping[str, Array], context: Context, pumps: Executor
) -> AsyncIterator[dict[str, Array]]:
    """Outputs of each response of a decoupled model; raises the model's error.

    Triton 2.51 gives a blocking iterator, so a thread of `pumps` reads it, to the end even when nobody listens.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[dict[str, Array] | ProteusError | None] = asyncio.Queue()

    def pump(responses: Iterable[Any]) -> None:
        last: ProteusError | None = None
        try:
            for response in responses:
                outputs = {name: array.copy() for name, array in _outputs(model, response).items()}
                if outputs:
                    loop.call_soon_threadsafe(arrived.put_nowait, outputs)
        except ProteusError as error:
            last = error
        except Exception as error:
            last = _logged(model, str(error))
        finally:
            loop.call_soon_threadsafe(arrived.put_nowait, last)

    try:
        responses = await _request(model, inputs, context).async_exec(decoupled=True)
    except pb_utils.TritonModelException as error:
        raise _logged(model, str(error)) from error
    pumps.submit(pump, responses)
    while isinstance(item := await arrived.get(), dict):
        yield item
    if item is not None:
        raise item


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
        raise _logged(model, response.error().message())
    return read_outputs(response, model.outputs)


def _logged(model: ModelSpec, text: str) -> ProteusError:
    error = revive(text, model.name)
    if isinstance(error, InternalError | Unavailable):
        pb_utils.Logger.log_error(f"{model.name} answered: {text}")
    return error


def ended_early(model: ModelSpec) -> ProteusError:
    """For a stream that stopped before its last event: the model's process died."""
    return Unavailable(f"{model.name} stopped answering", fix=TRY_AGAIN)
