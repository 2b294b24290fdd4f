"""The language models that it has of its own: here those of transformers, told of sequences as there."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM as Transformers

KNOWN = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")


class AutoModelForCausalLM:
    @staticmethod
    def from_config(config: Any) -> CausalLM:
        (name,) = config.pretrained_config.architectures
        if name not in KNOWN:
            raise ValueError(f"Unknown architecture for AutoModelForCausalLM: {name}")
        return CausalLM(config)


class CausalLM(torch.nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config.pretrained_config
        self.inner = Transformers.from_config(config.pretrained_config, dtype=torch.float32).eval()
        self.model = self.inner.model

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        missing, unexpected = self.inner.load_state_dict(weights, strict=False)
        tied = ["lm_head.weight"] if self.config.tie_word_embeddings else []
        if unexpected or [name for name in missing if name not in tied]:
            raise ValueError(f"weights are missing or unexpected: {missing}, {unexpected}")

    def infer_max_seq_len(self) -> int:
        return int(self.config.max_position_embeddings)

    def forward(
        self,
        attn_metadata: Any,
        input_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        return_context_logits: bool = False,
    ) -> torch.Tensor:
        """A row of logits for the last place of each sequence."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("exactly one of input_ids or inputs_embeds")
        flat = inputs_embeds if input_ids is None else input_ids
        rows = []
        for part, places, cache in zip(
            flat.split(attn_metadata.seq_lens),
            position_ids.split(attn_metadata.seq_lens),
            attn_metadata.caches,
            strict=True,
        ):
            given = {"inputs_embeds" if input_ids is None else "input_ids": part[None]}
            done = self.inner(**given, position_ids=places[None], cache=cache, use_cache=True)
            rows.append(done.logits[0, -1])
        return torch.stack(rows)
