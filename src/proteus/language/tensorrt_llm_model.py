"""LLaVA's language model for TensorRT-LLM, fed with visual tokens that were computed elsewhere: no tower is loaded.

Needs TensorRT-LLM and is imported by `load_api` alone; every worker imports it too, because `LanguageLoader` is of it.
R visual tokens, T prompt tokens, D width.
"""

from __future__ import annotations

import copy
import inspect
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensorrt_llm._torch.models.checkpoints.hf.checkpoint_loader import (  # type: ignore[import-not-found]
    HfCheckpointLoader,
)
from tensorrt_llm._torch.models.modeling_auto import AutoModelForCausalLM  # type: ignore[import-not-found]
from tensorrt_llm._torch.models.modeling_multimodal_utils import (  # type: ignore[import-not-found]
    find_input_mm_embeds,
    fuse_input_embeds,
)
from tensorrt_llm._torch.models.modeling_utils import register_auto_model  # type: ignore[import-not-found]
from tensorrt_llm.inputs.multimodal import MultimodalInput  # type: ignore[import-not-found]
from transformers import LlavaConfig, PreTrainedModel

from proteus.deployment import DeploymentError

EMBEDDING = "multimodal_embedding"  # the name under which TensorRT-LLM looks for rows
EMBEDDED_BEFORE = "multimodal_embed_mask_cumsum"  # (T,) of rows up to each place, from which it takes those of a chunk
ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}
# Of the hub's checkpoints, then of those that transformers keeps in memory.
LANGUAGE_PREFIXES = {"language_model.": "", "model.language_model.": "model.", "lm_head.": "lm_head."}
HASH = struct.Struct("<8i")  # TensorRT-LLM takes a digest of 32 bytes as eight numbers


def tensor(values: npt.NDArray[np.float32]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


class LanguageLoader(HfCheckpointLoader):  # type: ignore[misc]
    """Of the checkpoint's folder as it is, with weights in `dtype`."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self._dtype = dtype

    def load_config(self, checkpoint_dir: str, **kwargs: Any) -> Any:
        config = super().load_config(checkpoint_dir, **kwargs)
        whole = config.pretrained_config
        for part in (whole, whole.text_config):
            name = "dtype" if hasattr(part, "dtype") else "torch_dtype"  # as transformers called it before 4.56
            setattr(part, name, getattr(torch, self._dtype))
        return config


class RowsProcessor:
    """In place of the LLM API's own input processor: ids and rows as the engine gives them, no text, no pixels."""

    tokenizer = None

    def attach_multimodal_embeddings(
        self, inputs: Mapping[str, Any], given: Mapping[str, Any], sampling_params: Any
    ) -> tuple[list[int], dict[str, Any]]:
        """Called by the LLM API for `multi_modal_embeddings`; `given` is what `tensorrt_llm_prompt.llm_inputs` made."""
        rows, spans = given["rows"], given["spans"]
        is_row = np.zeros(len(given["token_ids"]), dtype=np.int64)
        for start, length in spans:
            is_row[start : start + length] = 1
        data = {EMBEDDING: tensor(rows), EMBEDDED_BEFORE: torch.from_numpy(np.cumsum(is_row))}
        hashes = [list(HASH.unpack(digest)) for digest in given["digests"]]
        return given["token_ids"], {"multimodal_data": data, "multimodal_input": _layout(hashes, spans)}


def _layout(hashes: list[list[int]], spans: tuple[tuple[int, int], ...]) -> Any:
    """Where each picture is in the prompt, as this version of TensorRT-LLM says it."""
    known = inspect.signature(MultimodalInput).parameters
    if "multimodal_item_runs" in known:  # since 1.3
        return MultimodalInput(
            multimodal_hashes=hashes, multimodal_item_runs=[[(start, length, ())] for start, length in spans]
        )
    starts, lengths = zip(*spans, strict=True)
    return MultimodalInput(
        multimodal_hashes=hashes, multimodal_positions=list(starts), multimodal_lengths=list(lengths)
    )


@register_auto_model("LlavaForConditionalGeneration")
class LlavaLanguageModel(PreTrainedModel):  # type: ignore[no-untyped-call]
    """TensorRT-LLM's own language model, with rows put in place of placeholders, whose id is one of the vocabulary."""

    config_class = LlavaConfig

    def __init__(self, model_config: Any, *_: Any, **__: Any) -> None:
        whole = model_config.pretrained_config
        super().__init__(whole)
        text = copy.deepcopy(model_config)
        text.extra_attrs = model_config.extra_attrs  # layers write themselves into it, and the executor reads it
        text.pretrained_config = whole.text_config
        text.pretrained_config.architectures = [architecture_of(whole.text_config.model_type)]
        self.llm = AutoModelForCausalLM.from_config(text)
        self.model_config = model_config
        self.config = model_config.pretrained_config = self.llm.config  # whoever asks, asks of the language model
        self.mm_token_ids = torch.tensor([whole.image_token_index], dtype=torch.int32)

    @property
    def multimodal_data_device_paths(self) -> list[str]:
        """What the executor takes to the GPU."""
        return [EMBEDDING]

    def load_weights(self, weights: Mapping[str, Any], weight_mapper: Any = None) -> None:
        self.llm.load_weights(language_weights(weights))

    def infer_max_seq_len(self) -> Any:
        return self.llm.infer_max_seq_len()

    @torch.inference_mode()
    def forward(
        self,
        attn_metadata: Any,
        input_ids: torch.Tensor | None = None,  # of all requests of an iteration, one after the other
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        return_context_logits: bool = False,
        **more: Any,
    ) -> Any:
        asked = more.get("multimodal_params", [])[: attn_metadata.num_contexts]
        with_rows = [params for params in asked if EMBEDDING in params.multimodal_data]
        rows: list[torch.Tensor] = []
        if with_rows:
            whole = torch.cat([params.multimodal_data[EMBEDDING] for params in with_rows])  # (R, D)
            rows = find_input_mm_embeds([whole], with_rows)  # those of this chunk that the KV cache does not have
        input_ids, inputs_embeds = fuse_input_embeds(
            self.llm.model.embed_tokens, input_ids, rows, mm_token_ids=self.mm_token_ids, **more
        )
        return self.llm.forward(
            attn_metadata=attn_metadata,
            input_ids=input_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            return_context_logits=return_context_logits,
        )


def architecture_of(model_type: str) -> str:
    """The class of TensorRT-LLM for a language model; raises DeploymentError naming those that are known."""
    if (name := ARCHITECTURES.get(model_type)) is None:
        raise DeploymentError(
            f"the checkpoint's language model is {model_type!r}",
            limit=f"on TensorRT-LLM: {', '.join(ARCHITECTURES)}",
            fix="set [gpu.llm] runtime = 'onnxruntime'",
        )
    return name


def language_weights(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the language model, under the names it has alone; tower and connector are left on the disk."""
    return {
        ours + name.removeprefix(theirs): weight
        for name, weight in weights.items()
        for theirs, ours in LANGUAGE_PREFIXES.items()
        if name.startswith(theirs)
    }
