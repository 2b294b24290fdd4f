"""What lies in the memory of a GPU, pool by pool: weights, keys and values, and what can only be assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from proteus.deployment import Deployment
from proteus.engines import plan_path, stages_on_tensorrt
from proteus.estimate_size.traffic import MIB, GpuMemory
from proteus.estimate_size.weights import Part, Weights
from proteus.families.language_model import LanguageModel
from proteus.language.kv_slots import KV_VALUE_BYTES
from proteus.limits_gpu import Gpu, GpuStage

PoolName = Literal["encoder", "language", "draw"]
Basis = Literal["exact", "at least", "from config", "assumed", "unknown"]
PARTS: Mapping[PoolName, tuple[Part, ...]] = {
    "encoder": ("vision_encoder", "connector"),
    "language": ("language",),
    "draw": ("text_encoder", "denoiser", "vae_decoder"),
}
BYTES_OF = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
CPU_BYTES = 4  # exported graphs are fp32, and so is our own engine's KV cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How a deployment serves its checkpoints, as far as memory is concerned."""

    slots: int
    context_tokens: int
    kv_value_bytes: int | None = None  # None: as wide as the weights
    kv_memory_fraction: float | None = None  # of what is free, for keys and values; None: slots take what they need
    tensor_parallel: int = 1
    weight_bytes: Mapping[Part, int] = field(default_factory=dict)  # of one parameter; a part left out: as stored
    copies: Mapping[Part, int] = field(default_factory=dict)  # of a part's weights on one GPU; left out: 1
    processes: Mapping[PoolName, int] = field(default_factory=dict)  # that open the GPU
    plan_bytes: Mapping[Part, int] = field(default_factory=dict)  # of installed engines: they hold their weights
    on_cpus: frozenset[PoolName] = frozenset()  # pools that compute there, in memory of the host

    @classmethod
    def of(cls, deployment: Deployment) -> Serving:
        """As [gpu] says; without it, as on CPUs."""
        llm = deployment.llm
        if deployment.gpu is not None:
            on_gpu = _on_gpu(deployment.gpu, llm.slots, llm.context_tokens)
            return replace(on_gpu, plan_bytes=_installed(deployment))
        parts = {part: CPU_BYTES for parts in PARTS.values() for part in parts}
        copies: dict[Part, int] = {}
        for part in ("vision_encoder", "connector", "text_encoder", "vae_decoder"):
            stage = getattr(deployment.stages, part)
            copies[part] = 1 if stage is None else stage.instances
        return cls(
            slots=llm.slots,
            context_tokens=llm.context_tokens,
            kv_value_bytes=KV_VALUE_BYTES,
            weight_bytes=parts,
            copies=copies,
            processes=dict.fromkeys(PARTS, 0),
            on_cpus=frozenset(PARTS),
        )


def _installed(deployment: Deployment) -> dict[Part, int]:
    """Bytes of the engines that are served."""
    plans = {stage: plan_path(deployment.repository_path, stage) for stage in stages_on_tensorrt(deployment)}
    return {stage: plan.stat().st_size for stage, plan in plans.items() if plan.is_file()}


def _on_gpu(gpu: Gpu, slots: int, context_tokens: int) -> Serving:
    llm = gpu.llm
    ours = llm.runtime == "onnxruntime"
    # TensorRT-LLM computes in 16 bits, whatever the checkpoint is in (docs/tensorrt_llm.md).
    weight_bytes: dict[Part, int] = {"language": CPU_BYTES if ours else 2}
    copies: dict[Part, int] = {}
    processes: dict[PoolName, int] = {"encoder": 1, "language": 0 if ours else 2, "draw": 2}  # of one GPU
    for pool, parts in PARTS.items():
        for part in parts:
            stage = gpu.denoiser if part == "denoiser" else gpu.stages().get(part)
            if stage is None:
                continue
            weight_bytes[part] = BYTES_OF[stage.precision]
            instances = stage.instances if isinstance(stage, GpuStage) else 1
            copies[part] = 1 if stage.runtime == "tensorrt" else instances  # its engines are shared by a device's
            if stage.runtime == "torch" and isinstance(stage, GpuStage):
                processes[pool] += instances
    return Serving(
        slots=slots,
        context_tokens=context_tokens,
        kv_value_bytes=KV_VALUE_BYTES if ours else {"auto": None, "fp8": 1, "int8": 1}[llm.kv_dtype],
        kv_memory_fraction=None if ours else llm.kv_memory_fraction,
        tensor_parallel=1 if ours else llm.tensor_parallel,
        on_cpus=frozenset({"language"}) if ours else frozenset(),  # our own engine computes there, on GPU hosts too
        weight_bytes=weight_bytes,
        copies=copies,
        processes=processes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing that takes memory of one GPU."""

    what: str
    num_bytes: int | None  # None: unknown
    basis: Basis
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """One pod of a pool, on one GPU of those that it has."""

    pool: PoolName
    gpu_bytes: int
    rows: Sequence[Row]
    on_cpus: bool  # all of it is memory of the host, of which nothing was stated

    @property
    def used_bytes(self) -> int | None:
        """Of all rows; None where one is unknown."""
        if any(row.num_bytes is None for row in self.rows):
            return None
        return sum(row.num_bytes or 0 for row in self.rows)

    @property
    def fits(self) -> bool | None:
        return None if self.used_bytes is None or self.on_cpus else self.used_bytes <= self.gpu_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageMemory(PoolMemory):
    """The language pool, and what its memory is enough for. All numbers of one pod, over its GPUs."""

    kv_value_bytes: int
    kv_token_bytes: int  # 2 · layers · kv_heads · head_dim · bytes; every GPU has a head at least
    slot_bytes: int  # a whole context, cross-attention aside
    slots: int
    kv_pool_bytes: int | None  # what keys and values may take
    mean_tokens: int  # of a request's prompt and answer; 0: no traffic was stated

    @property
    def fits(self) -> bool | None:
        """With one slot at least, where TensorRT-LLM takes what it may and no more."""
        if self.used_bytes is None or self.on_cpus:
            return None
        return self.used_bytes <= self.gpu_bytes and self.slots_that_fit != 0

    @property
    def slots_that_fit(self) -> int | None:
        """With a whole context each."""
        return None if self.kv_pool_bytes is None else self.kv_pool_bytes // self.slot_bytes

    @property
    def requests_that_fit(self) -> int | None:
        """Of the mean length, where memory is shared block by block, as in TensorRT-LLM."""
        if self.kv_pool_bytes is None or not self.mean_tokens:
            return None
        return self.kv_pool_bytes // (self.kv_token_bytes * self.mean_tokens)


def pool_memory(
    pool: Literal["encoder", "draw"], weights: Mapping[Part, Weights], serving: Serving, gpu: GpuMemory
) -> PoolMemory:
    """Weights of each part, and what is assumed."""
    rows = [_weights_row(part, weights.get(part), serving) for part in PARTS[pool]]
    return PoolMemory(
        pool=pool,
        gpu_bytes=gpu.memory_mib * MIB,
        rows=(*rows, *_assumed(pool, serving, gpu)),
        on_cpus=pool in serving.on_cpus,
    )


def language_memory(
    model: LanguageModel, weights: Weights | None, serving: Serving, gpu: GpuMemory, *, mean_tokens: int
) -> LanguageMemory:
    """Weights, keys and values of all slots, and what is assumed; of one GPU of `tensor_parallel`."""
    stored = 2 if weights is None else weights.stored_bytes
    value_bytes = serving.kv_value_bytes or serving.weight_bytes.get("language", stored)
    shares = serving.tensor_parallel
    heads = _ceil(model.kv_heads, shares) * shares  # where there are more GPUs than heads, some have the same
    token_bytes = model.self_kv_bytes(1, value_bytes) * heads // model.kv_heads
    slot_bytes = token_bytes * serving.context_tokens
    how = (
        f"2 x {model.layers} layers x {heads} heads x {model.head_dim} x {value_bytes} bytes = "
        f"{token_bytes:,} a token; x {serving.context_tokens:,} tokens x {serving.slots} slots{_over(shares)}"
    )
    all_slots = _ceil(serving.slots * slot_bytes, shares)
    others = (_weights_row("language", weights, serving), *_assumed("language", serving, gpu))
    gpu_bytes = gpu.memory_mib * MIB
    taken = [row.num_bytes for row in others]
    on_cpus = "language" in serving.on_cpus
    free = None if on_cpus or None in taken else max(0, gpu_bytes - sum(taken))  # type: ignore[arg-type]
    fraction = serving.kv_memory_fraction
    pool = None if free is None else int(free * (1.0 if fraction is None else fraction))
    if fraction is None:
        kv_row = Row(what="keys and values", num_bytes=all_slots, basis="exact", how=how)
    else:
        told = f"{fraction:g} of what is left, taken at the start. All slots want {all_slots // MIB:,} MiB: {how}"
        kv_row = Row(what="keys and values", num_bytes=pool, basis="unknown" if pool is None else "assumed", how=told)
    return LanguageMemory(
        pool="language",
        gpu_bytes=gpu_bytes,
        rows=(others[0], kv_row, *others[1:]),
        on_cpus=on_cpus,
        kv_value_bytes=value_bytes,
        kv_token_bytes=token_bytes,
        slot_bytes=slot_bytes,
        slots=serving.slots,
        kv_pool_bytes=None if pool is None else pool * shares,
        mean_tokens=mean_tokens,
    )


def _weights_row(part: Part, weights: Weights | None, serving: Serving) -> Row:
    shares = serving.tensor_parallel if part == "language" else 1
    copies = serving.copies.get(part, 1)
    what = f"weights of {part.replace('_', ' ')}"
    if (plan := serving.plan_bytes.get(part)) is not None:
        return Row(what=what, num_bytes=plan, basis="exact", how="its installed engine")
    if weights is None:
        return Row(what=what, num_bytes=None, basis="unknown", how="neither safetensors nor config.json tell")
    each = serving.weight_bytes.get(part, weights.stored_bytes)
    narrowed = part != "language" and each < CPU_BYTES  # what does not stay finite in it stays wider
    repeated = shares > 1  # norms, and heads of keys and values, are on several GPUs
    basis: Basis = "from config" if weights.basis == "config" else "at least" if narrowed or repeated else "exact"
    times = f" x {copies} instances" if copies > 1 else ""
    return Row(
        what=what,
        num_bytes=_ceil(weights.parameters * each * copies, shares),
        basis=basis,
        how=f"{weights.parameters:,} parameters x {each} bytes{times}{_over(shares)}",
    )


def _assumed(pool: PoolName, serving: Serving, gpu: GpuMemory) -> tuple[Row, ...]:
    """Of a GPU: what a process takes on a host is not guessed."""
    if pool in serving.on_cpus:
        return ()
    processes = serving.processes.get(pool, 1)
    contexts = processes * gpu.context_mib * MIB
    return (
        Row(
            what="CUDA contexts",
            num_bytes=contexts,
            basis="assumed",
            how=f"{processes} process{'es' if processes != 1 else ''} x {gpu.context_mib:,} MiB ([gpu] context_mib)",
        ),
        Row(
            what="activations, workspaces",
            num_bytes=gpu.activation_mib * MIB,
            basis="assumed",
            how="[gpu] activation_mib; a running pod tells: nv_gpu_memory_used_bytes",
        ),
    )


def _over(shares: int) -> str:
    return f", over {shares} GPUs" if shares > 1 else ""


def _ceil(number: int, parts: int) -> int:
    return -(-number // parts)
