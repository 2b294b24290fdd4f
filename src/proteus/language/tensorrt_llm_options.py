"""What TensorRT-LLM is started with: [llm] and [gpu.llm] in its words; what it does not have stops the start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from proteus.deployment import DeploymentError
from proteus.language.tensorrt_llm_versions import FIX, Api
from proteus.limits import Llm
from proteus.limits_gpu import GpuLlm

KV_DTYPES = ("auto", "fp8")
HALF = ("bfloat16", "float16")
BLOCK_TOKENS = 32  # of its keys and values; a prompt is cut at whole blocks alone


def check_gpu_llm(gpu: GpuLlm) -> None:
    """Raises DeploymentError naming key, value and fix."""
    if gpu.kv_dtype not in KV_DTYPES:
        raise DeploymentError(
            f"[gpu.llm] kv_dtype = {gpu.kv_dtype!r}",
            limit=f"on TensorRT-LLM's PyTorch backend: {', '.join(KV_DTYPES)}",
            fix="set kv_dtype = 'fp8' (Ada, Hopper and later), or 'auto'",
        )


def visible_devices(gpu: GpuLlm, visible: str | None) -> str:
    """CUDA_VISIBLE_DEVICES for the engine, of those that this process may see (None: all)."""
    wanted = range(gpu.device, gpu.device + gpu.tensor_parallel)
    if visible is None:
        return ",".join(map(str, wanted))
    names = [name for name in visible.split(",") if name]
    if wanted.stop > len(names):
        raise DeploymentError(
            f"[gpu.llm] device = {gpu.device} with tensor_parallel = {gpu.tensor_parallel}",
            limit=f"CUDA_VISIBLE_DEVICES = {visible} has {len(names)} devices",
            fix="give the server more devices, or lower device or tensor_parallel",
        )
    return ",".join(names[number] for number in wanted)


def weights_dtype(checkpoint: Path, gpu: GpuLlm) -> str:
    """Its kernels of attention compute in 16 bits: `auto` keeps such a checkpoint's own, else takes bfloat16."""
    if gpu.dtype != "auto":
        return gpu.dtype
    try:
        config = json.loads((checkpoint / "config.json").read_bytes())
        parts = (config, config.get("text_config", {}))
    except (OSError, ValueError, AttributeError) as error:
        raise DeploymentError(f"{checkpoint / 'config.json'} is missing or wrong", fix="copy the checkpoint") from error
    named = [part[key] for part in parts for key in ("dtype", "torch_dtype") if part.get(key) in HALF]
    return str(named[0]) if named else HALF[0]


def check_weights(checkpoint: Path) -> None:
    """TensorRT-LLM reads them itself; `export/weights.py` brings them. Raises DeploymentError."""
    if not any(checkpoint.glob("*.safetensors")):
        raise DeploymentError(
            f"{checkpoint} has no weights",
            limit="on TensorRT-LLM: *.safetensors beside config.json",
            fix="export again with TARGET=tensorrt or torch, which brings them there",
        )


def open_llm(api: Api, *, checkpoint: Path, llm: Llm, gpu: GpuLlm) -> Any:
    """An `LLM` that takes prompts with rows. With a loader of weights it makes no input processor for the model's class
    (its checkpoint format is then none), so ours is put in the place of the one for text.
    """
    opened = api.LLM(**llm_options(api, checkpoint=checkpoint, llm=llm, gpu=gpu))
    if not hasattr(opened, "input_processor"):
        raise DeploymentError(f"TensorRT-LLM {api.version}: LLM has no input_processor", fix=FIX)
    opened.input_processor = api.processor()
    return opened


def llm_options(api: Api, *, checkpoint: Path, llm: Llm, gpu: GpuLlm) -> dict[str, Any]:
    """Arguments of `LLM`."""
    check_gpu_llm(gpu)
    check_weights(checkpoint)
    cuts_prompts = llm.schedule.policy != "fifo"
    dtype = weights_dtype(checkpoint, gpu)
    return {
        "model": str(checkpoint),
        "skip_tokenizer_init": True,  # ids come in and go out; text is made by language/stream.py
        "tensor_parallel_size": gpu.tensor_parallel,
        "dtype": dtype,
        "checkpoint_loader": api.loader(dtype),
        "max_batch_size": llm.slots,
        "max_seq_len": llm.context_tokens,
        # Less than a block beside all decodes would never compute a long prompt.
        "max_num_tokens": max(
            llm.schedule.iteration_tokens, llm.slots + BLOCK_TOKENS if cuts_prompts else llm.context_tokens
        ),
        "enable_chunked_prefill": cuts_prompts,
        "kv_cache_config": api.KvCacheConfig(
            enable_block_reuse=llm.prefix_cache.max_bytes > 0,
            free_gpu_memory_fraction=gpu.kv_memory_fraction,
            tokens_per_block=BLOCK_TOKENS,
            dtype=gpu.kv_dtype,
        ),
    }
