"""Pieces of a config.pbtxt, as text; which model has which is in `proteus.configs`.

Only fields that Triton 2.51 knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from proteus.contract import Dims, ModelSpec, TensorSpec
from proteus.deployment import Stage

PYTHON, ONNX, ENSEMBLE = 'backend: "python"\n', 'backend: "onnxruntime"\n', 'platform: "ensemble"\n'
DECOUPLED = "model_transaction_policy { decoupled: true }\n"


class Resolving(Protocol):
    """What the symbols of the contract stand for."""

    def resolve(self, dims: Dims) -> tuple[int, ...]: ...


def head(spec: ModelSpec, shapes: Resolving, max_batch: int) -> str:
    """Batch size and tensors."""
    groups = (("input", spec.inputs), ("output", spec.outputs))
    return f"max_batch_size: {max_batch}\n" + "".join(_tensors(kind, specs, shapes) for kind, specs in groups)


def instances(count: int) -> str:
    return f"instance_group [ {{ count: {count} kind: KIND_CPU }} ]\n"


def batching(stage: Stage) -> str:
    """Dynamic batches, of requests of one shape: a bucket. A full queue refuses, it never grows."""
    return (
        "dynamic_batching {\n"
        f"  max_queue_delay_microseconds: {stage.max_queue_delay_us}\n"
        f"  default_queue_policy {{ max_queue_size: {stage.max_queue} allow_timeout_override: true }}\n"
        "}\n"
    )


def nice(stage: Stage) -> str:
    return parameters({"nice": str(stage.nice)})


def clock(tensor: TensorSpec | None) -> str:
    """The output that our own backends fill with times."""
    return "" if tensor is None else parameters({"clock_output": tensor.name})


def threads(stage: Stage) -> str:
    """Of ONNX Runtime."""
    return parameters({"intra_op_thread_count": str(stage.threads), "inter_op_thread_count": "1"})


def warmups(reads: Mapping[TensorSpec, Sequence[int]], max_batch: int, name: str = "zeros") -> str:
    """The smallest and the largest batch of `reads`, with the dims given, before the model is ready."""
    return "".join(_warmup(reads, batch, name) for batch in sorted({1, max_batch}))


def response_cache(enabled: bool) -> str:
    return "response_cache { enable: true }\n" if enabled else ""


def parameters(values: Mapping[str, str]) -> str:
    return "".join(
        f'parameters {{ key: "{key}" value: {{ string_value: "{_escaped(value)}" }} }}\n'
        for key, value in values.items()
    )


def revision(of_checkpoint: str) -> str:
    """Told to other servers."""
    return parameters({"revision": of_checkpoint})


def _tensors(kind: str, specs: tuple[TensorSpec, ...], shapes: Resolving) -> str:
    return f"{kind} [\n" + ",\n".join(_tensor(kind, spec, shapes) for spec in specs) + "\n]\n"


def _tensor(kind: str, spec: TensorSpec, shapes: Resolving) -> str:
    extra = ""
    if kind == "input":
        extra = " optional: true" * spec.optional + " allow_ragged_batch: true" * spec.ragged
    dims = joined(shapes.resolve(spec.dims))
    return f'  {{ name: "{spec.name}" data_type: TYPE_{spec.dtype} dims: [ {dims} ]{extra} }}'


def _warmup(reads: Mapping[TensorSpec, Sequence[int]], batch: int, name: str) -> str:
    """One batch of zeros, so that no client pays for the session's first run."""
    inputs = "".join(
        f'inputs {{ key: "{spec.name}" value: '
        f"{{ data_type: TYPE_{spec.dtype} dims: [ {joined(dims)} ] zero_data: true }} }} "
        for spec, dims in reads.items()
    )
    return f'model_warmup {{ name: "{batch} of {name}" batch_size: {batch} {inputs}}}\n'


def joined(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
