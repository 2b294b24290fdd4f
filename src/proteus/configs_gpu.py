"""`configs/gpu.pbtxt` of every model: the same tensors and batches, on the GPUs that the deployment's [gpu] names.

Triton reads it in place of config.pbtxt with --model-config-name=gpu. Why what is set, and what is left at Triton's
default: docs/decisions/0023.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from proteus import pbtxt
from proteus.configs_models import Door, Ensemble, Graph, Model, Preprocess
from proteus.contract import CONNECTOR, LLM
from proteus.contract_draw import DENOISER
from proteus.deployment import Deployment
from proteus.engines import EngineStage
from proteus.limits_gpu import Gpu, GpuDenoiser, GpuLlm, GpuStage, StageRuntime
from proteus.profiles import Profile, profiles_of

HARDWARE = {"hardware": "gpu"}  # parameter of every Python model, which may run on either kind of host
# Of Triton's rate limiter: what has the lower product of priority and executions goes first, and whatever stands behind
# it waits. With 1, the default, a door that has answered much would wait behind a stage that cannot run yet.
BEHIND_OTHERS = 1_000_000_000
# Inputs of the connector lie on the device already, one for each picture: from so many on, one kernel gathers them.
GATHER_FROM_BUFFERS = 4
PLATFORMS: Mapping[StageRuntime, str] = {
    "tensorrt": 'platform: "tensorrt_plan"\ndefault_model_filename: "model.plan"\n',
    "onnxruntime": 'backend: "onnxruntime"\n',
    "torch": 'backend: "proteus_torch"\ndefault_model_filename: "model.pt2"\n',
}
# Of the CUDA execution provider: no search over every algorithm at a shape's first run, memory as asked for.
CUDA_OPTIONS = {"cudnn_conv_algo_search": "HEURISTIC", "arena_extend_strategy": "kSameAsRequested"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuConfigs:
    """Writes the configurations of one deployment."""

    deployment: Deployment
    gpu: Gpu
    where: str  # the parameter `deployment`, as text
    steps: str  # of the ensemble, as text

    def body(self, model: Model) -> str:
        """All but the name."""
        match model:
            case Door():
                alone = pbtxt.DECOUPLED + pbtxt.instances(1) + self._parameters({})
                return pbtxt.PYTHON + model.head + alone + pbtxt.parameters(model.parameters)
            case Preprocess():
                batches = pbtxt.instances(model.stage.instances) + pbtxt.batching(model.stage) + pbtxt.nice(model.stage)
                return pbtxt.PYTHON + model.head + batches + self._parameters({})
            case Ensemble():
                return pbtxt.ENSEMBLE + model.head + self.steps + pbtxt.revision(model.revision)
            case Graph():
                table = self.gpu.stages()[model.spec.name]
                return PLATFORMS[table.runtime] + model.head + self._graph(model, table)
            case _:
                engine = self._engines()[model.spec.name]
                alone = pbtxt.DECOUPLED + _instances(1, [engine.device])
                return pbtxt.PYTHON + model.head + alone + self._parameters({"runtime": engine.runtime})

    def _parameters(self, more: Mapping[str, str]) -> str:
        return self.where + pbtxt.parameters(HARDWARE | dict(more))

    def _engines(self) -> dict[str, GpuLlm | GpuDenoiser]:
        """They hold nothing of the rate limiter, which sees none of their work."""
        engines: dict[str, GpuLlm | GpuDenoiser] = {LLM.name: self.gpu.llm}
        return engines if self.gpu.denoiser is None else engines | {DENOISER.name: self.gpu.denoiser}

    def _graph(self, model: Graph, table: GpuStage) -> str:
        stage = cast(EngineStage, model.spec.name)
        profiles = profiles_of(self.deployment, stage) if table.runtime == "tensorrt" else ()
        names = ", ".join(f'"{number}"' for number in range(len(profiles)))
        resources = ", ".join(f'{{ name: "{name}" count: 1 }}' for name in self.gpu.resources())
        precision = pbtxt.parameters({"precision": table.precision})  # part of what names the encoder in caches
        limiter = f" rate_limiter {{ resources [ {resources} ] priority: {BEHIND_OTHERS} }}"
        return (
            pbtxt.response_cache(model.cached)
            + _instances(table.instances, self.gpu.devices, (f" profile: [ {names} ]" if names else "") + limiter)
            + pbtxt.batching(model.stage)
            + precision
            + _RUNTIMES[table.runtime](model, profiles)
        )


def _tensorrt(model: Graph, profiles: Sequence[Profile]) -> str:
    fixed = all(-1 not in model.shapes.resolve(spec.dims) for spec in model.spec.inputs)
    gather = f"  gather_kernel_buffer_threshold: {GATHER_FROM_BUFFERS}\n" if model.spec.name == CONNECTOR.name else ""
    memory = pbtxt.parameters({"execution_context_allocation_strategy": "ON_PROFILE_CHANGE"})
    return (
        _optimization(gather + (_cuda_graphs(model) if fixed else ""))
        + memory * (len(profiles) > 1)
        + "".join(_warmups(model, profile, alone=len(profiles) == 1) for profile in profiles)
    )


def _onnxruntime(model: Graph, _profiles: Sequence[Profile]) -> str:
    options = "".join(f' parameters {{ key: "{key}" value: "{value}" }}' for key, value in CUDA_OPTIONS.items())
    provider = f'  execution_accelerators {{ gpu_execution_accelerator [ {{ name: "cuda"{options} }} ] }}\n'
    # What has no CUDA kernel runs on a CPU.
    return _optimization(provider) + _process(model) + pbtxt.warmups(model.reads, model.max_batch)


def _torch(model: Graph, _profiles: Sequence[Profile]) -> str:
    return _process(model) + pbtxt.warmups(model.reads, model.max_batch)


def _process(model: Graph) -> str:
    """What one of our backends reads, whose instances are processes."""
    return pbtxt.nice(model.stage) + pbtxt.threads(model.stage) + pbtxt.clock(model.clock)


_RUNTIMES: Mapping[StageRuntime, Callable[[Graph, Sequence[Profile]], str]] = {
    "tensorrt": _tensorrt,
    "onnxruntime": _onnxruntime,
    "torch": _torch,
}


def _instances(count: int, devices: Sequence[int], more: str = "") -> str:
    return f"instance_group [ {{ count: {count} kind: KIND_GPU gpus: [ {pbtxt.joined(devices)} ]{more} }} ]\n"


def _optimization(more: str) -> str:
    """Copies by pinned memory; on the device, what else runs there goes first."""
    return (
        "optimization {\n"
        "  priority: PRIORITY_MIN\n"
        "  input_pinned_memory { enable: true }\n"
        "  output_pinned_memory { enable: true }\n"
        f"{more}}}\n"
    )


def _cuda_graphs(model: Graph) -> str:
    """One for each power of two, which also runs the smaller batches down to the one before: rows know nothing of each
    other, and those that nobody asked for are read by nobody.
    """
    specs, lowest = [], 1
    for batch in _powers_of_two(model.max_batch):
        specs.append(
            f"    graph_spec {{ batch_size: {batch} {_dims(model)}"
            f" graph_lower_bound {{ batch_size: {lowest} {_dims(model)} }} }}\n"
        )
        lowest = batch + 1
    return "  cuda {\n    graphs: true\n" + "".join(specs) + "  }\n"


def _powers_of_two(most: int) -> list[int]:
    """Up to `most`, which is one of them whatever it is."""
    return sorted({*(1 << power for power in range(most.bit_length())), most})


def _dims(model: Graph) -> str:
    """Of every input, without its batch."""
    return " ".join(
        f'input {{ key: "{spec.name}" value {{ dim: [ {pbtxt.joined(model.shapes.resolve(spec.dims))} ] }} }}'
        for spec in model.spec.inputs
    )


def _warmups(model: Graph, profile: Profile, *, alone: bool) -> str:
    """Every profile is run before the model is ready, with the shapes that it is made for."""
    reads = {spec: profile.shapes[spec.name][1][1:] for spec in model.spec.inputs}
    return pbtxt.warmups(reads, model.max_batch, "zeros" if alone else f"zeros, {profile.name}")
