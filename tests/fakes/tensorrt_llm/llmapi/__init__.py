"""The LLM API."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from tensorrt_llm._torch.models.modeling_utils import MODELS
from tensorrt_llm.executor import Executor, RequestOutput, WorkItem
from tensorrt_llm.inputs import DefaultInputProcessor
from tensorrt_llm.inputs.multimodal import MultimodalParams
from tensorrt_llm.sampling_params import SamplingParams

__all__ = ["LLM", "KvCacheConfig", "SamplingParams"]


class KvCacheConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")

    enable_block_reuse: bool = True
    max_tokens: int | None = None
    free_gpu_memory_fraction: float | None = Field(0.9, ge=0, le=1)
    host_cache_size: int | None = None
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    dtype: Literal["auto", "fp8", "nvfp4"] = "auto"
    tokens_per_block: int = 32


class LlmArgs(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    model: str
    tokenizer: Any = None
    tokenizer_mode: Literal["auto", "slow"] = "auto"
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    tensor_parallel_size: int = 1
    dtype: Literal["auto", "float16", "float32", "bfloat16"] = "auto"
    revision: str | None = None
    tokenizer_revision: str | None = None
    max_batch_size: int = 2048
    max_num_tokens: int = 8192
    max_seq_len: int | None = None
    enable_chunked_prefill: bool = False
    kv_cache_config: KvCacheConfig = KvCacheConfig()
    checkpoint_loader: Any = None


class LLM:
    def __init__(
        self,
        model: str,
        tokenizer: Any = None,
        tokenizer_mode: Literal["auto", "slow"] = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "kwargs")}
        self.args = LlmArgs(**given, **kwargs)
        loader = self.args.checkpoint_loader
        config = loader.load_config(self.args.model)
        (architecture,) = config.pretrained_config.architectures
        model_cls = MODELS[architecture]
        self.input_processor: Any = DefaultInputProcessor(None)  # `checkpoint_format` is None beside a loader
        network = model_cls(config)
        network.load_weights(loader.load_weights(self.args.model), weight_mapper=None)
        self._executor = Executor(network, self.args)

    def generate_async(
        self,
        inputs: Any,
        sampling_params: SamplingParams | None = None,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        disaggregated_params: Any = None,
        trace_headers: Any = None,
        _postproc_params: Any = None,
        scheduling_params: Any = None,
        conversation_params: Any = None,
        cache_salt: str | None = None,
        priority: float = 0.5,
    ) -> RequestOutput:
        if not isinstance(sampling_params, SamplingParams):
            raise TypeError(f"The sampling_params must be type SamplingParams, but got {type(sampling_params)}")
        if sampling_params.end_id is None:
            raise ValueError("tokenizer is required to reset end_id if it is None")
        if cache_salt is not None and not isinstance(cache_salt, str):
            raise TypeError(f"cache_salt is {type(cache_salt)}")
        token_ids, params = self._preprocess(inputs, sampling_params)
        if len(token_ids) + sampling_params.max_tokens > (self.args.max_seq_len or 1 << 30):
            raise ValueError("prompt and max_tokens exceed max_seq_len")
        if not self.args.enable_chunked_prefill and len(token_ids) > self.args.max_num_tokens:
            raise ValueError("The sum of prompt length should not exceed max_num_tokens")
        result = RequestOutput(token_ids, sampling_params, self._executor, streaming=streaming)
        self._executor.submit(WorkItem(result, params, cache_salt))
        return result

    def shutdown(self) -> None:
        self._executor.shutdown()

    def _preprocess(self, inputs: Any, sampling_params: SamplingParams) -> tuple[list[int], MultimodalParams | None]:
        known = {"prompt", "prompt_token_ids", "multi_modal_data", "multi_modal_embeddings", "mm_processor_kwargs"}
        if not isinstance(inputs, dict) or not inputs.keys() <= known:
            raise TypeError(f"The inputs must be a prompt, but got {inputs!r}")
        if "multi_modal_embeddings" not in inputs:
            return _checked_ids(inputs["prompt_token_ids"]), None
        if not inputs.get("prompt"):
            raise TypeError("text is needed beside embeddings: ids alone lose them before 1.3")
        token_ids, extra = self.input_processor.attach_multimodal_embeddings(
            inputs, inputs["multi_modal_embeddings"], sampling_params
        )
        data = extra["multimodal_data"]
        if not all(isinstance(value, torch.Tensor) for value in data.values()):
            raise TypeError("multimodal_data is handed to another process as tensors")
        return _checked_ids(token_ids), MultimodalParams(extra.get("multimodal_input"), data)


def _checked_ids(token_ids: Any) -> list[int]:
    if not isinstance(token_ids, list) or not token_ids or not all(type(number) is int for number in token_ids):
        raise TypeError("prompt_token_ids must be a list of int")
    return token_ids
