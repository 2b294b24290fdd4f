"""Which TensorRT-LLM is installed, and whether it has what the engine uses: by number, and by what is really there.

docs/tensorrt_llm.md says which version brought what.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from proteus.deployment import DeploymentError

FINAL = 1 << 20  # in place of a release candidate's number
PATTERN = re.compile(r"^(\d+)\.(\d+)\.(\d+)(?:rc(\d+))?")
IMAGE = "nvcr.io/nvidia/tritonserver:26.10-trtllm-python-py3"
FIX = f"use the image {IMAGE}, or set [gpu.llm] runtime = 'onnxruntime'"
GENERATE = ("inputs", "sampling_params", "streaming", "cache_salt")
KV_CACHE = ("enable_block_reuse", "free_gpu_memory_fraction", "dtype", "tokens_per_block")
SAMPLING = (
    "end_id",
    "pad_id",
    "max_tokens",
    "stop_token_ids",
    "include_stop_str_in_output",
    "detokenize",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "min_tokens",
    "embedding_bias",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "prompt_ignore_length",
    "logprobs",
)


class Version(NamedTuple):
    """A release; a release candidate comes before its release. What follows the number (`.post1`, `+local`) is left."""

    major: int
    minor: int
    patch: int
    candidate: int = FINAL

    @classmethod
    def parse(cls, text: str) -> Version:
        """Raises DeploymentError where it is no version."""
        if (found := PATTERN.match(text)) is None:
            raise DeploymentError(f"TensorRT-LLM calls itself {text!r}", limit="a version as 1.2.0", fix=FIX)
        major, minor, patch, candidate = found.groups()
        return cls(int(major), int(minor), int(patch), FINAL if candidate is None else int(candidate))

    def __str__(self) -> str:
        name = f"{self.major}.{self.minor}.{self.patch}"
        return name if self.candidate == FINAL else f"{name}rc{self.candidate}"


OLDEST = Version(1, 2, 0)  # the first whose block reuse keeps salts and embeddings that a client computed apart
NEWER_THAN_TRIED = Version(1, 5, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """What the engine uses of TensorRT-LLM; nothing else of it is named outside this file and tensorrt_llm_model.py."""

    version: Version
    LLM: Callable[..., Any]
    SamplingParams: Callable[..., Any]
    KvCacheConfig: Callable[..., Any]
    loader: Callable[[str], Any]  # of weights, in a dtype
    processor: Callable[[], Any]  # of prompts with rows
    tensor: Callable[[npt.NDArray[np.float32]], Any]


def load_api() -> Api:
    """Import TensorRT-LLM, which takes the GPUs that CUDA_VISIBLE_DEVICES names. Raises DeploymentError."""
    package = _imported("tensorrt_llm")
    version = check_version(str(getattr(package, "__version__", "")))
    llmapi = _imported("tensorrt_llm.llmapi")
    multimodal = _imported("tensorrt_llm.inputs.multimodal")
    _check_names("LLM.generate_async", package.LLM.generate_async, GENERATE, version)
    _check_names("SamplingParams", package.SamplingParams, SAMPLING, version)
    _check_names("KvCacheConfig", llmapi.KvCacheConfig, KV_CACHE, version)
    _check_names("MultimodalInput", multimodal.MultimodalInput, ("multimodal_hashes",), version)
    model = _imported("proteus.language.tensorrt_llm_model")  # registers the model class
    return Api(
        version=version,
        LLM=package.LLM,
        SamplingParams=package.SamplingParams,
        KvCacheConfig=llmapi.KvCacheConfig,
        loader=model.LanguageLoader,
        processor=model.RowsProcessor,
        tensor=model.tensor,
    )


def check_version(text: str) -> Version:
    """Raises DeploymentError unless the engine was written for it."""
    version = Version.parse(text)
    if not OLDEST <= version < NEWER_THAN_TRIED:
        kind = "too old" if version < OLDEST else "newer than what this release was written for"
        raise DeploymentError(
            f"TensorRT-LLM {text} is {kind}",
            limit=f"{OLDEST} or later, before {NEWER_THAN_TRIED.major}.{NEWER_THAN_TRIED.minor}",
            fix=FIX,
        )
    return version


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] == "tensorrt_llm":
            what = "is not installed" if error.name == "tensorrt_llm" else f"has no module {error.name}"
            raise DeploymentError(f"TensorRT-LLM {what}", limit=f"{OLDEST} or later", fix=FIX) from error
        raise DeploymentError(f"TensorRT-LLM needs the module {error.name}", fix=FIX) from error
    except (ImportError, OSError, RuntimeError) as error:  # a library of CUDA or MPI, or no driver
        raise DeploymentError(f"TensorRT-LLM cannot be loaded here ({error})", fix=FIX) from error


def _check_names(what: str, thing: Callable[..., Any], needed: Iterable[str], version: Version) -> None:
    """A number says little of a nightly build: what is called must be there."""
    there = inspect.signature(thing).parameters
    if missing := [name for name in needed if name not in there]:
        raise DeploymentError(
            f"TensorRT-LLM {version}: {what} does not know {', '.join(missing)}",
            limit="all that the engine uses",
            fix=FIX,
        )
