"""Fields and types of a request's sampling."""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from typing import Any

import torch


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    bad: Any = None
    bad_token_ids: list[int] | None = None
    stop: Any = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: torch.Tensor | None = None
    logits_processor: Any = None
    n: int = 1
    best_of: int | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    prompt_ignore_length: int | None = None
    min_p: float | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_perf_metrics: bool = False
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            wanted = str(field.type).split(" ")[0]
            kinds = {"int": int, "float": (int, float), "bool": bool, "list[int]": list, "torch.Tensor": torch.Tensor}
            if value is not None and wanted in kinds and not isinstance(value, kinds[wanted]):
                raise TypeError(f"{field.name} must be {wanted}, not {type(value).__name__}")
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"):
            value = getattr(self, name)
            narrow = 0.0 if value is None else struct.unpack("f", struct.pack("f", value))[0]  # raises on overflow
            if value and not narrow:
                raise ValueError(f"{name} = {value} is nothing in 32 bits")
        if self.top_k is not None and not 0 <= self.top_k < 1 << 31:
            raise TypeError("incompatible function arguments: top_k")
        if self.temperature is not None and self.temperature < 0:
            raise ValueError(f"require temperature >= 0, got temperature={self.temperature}")
        if self.top_p is not None and not 0 <= self.top_p <= 1:
            raise ValueError(f"require 0 <= top_p <= 1, got top_p={self.top_p}")

    @property
    def is_greedy(self) -> bool:
        """Neither temperature nor top_k nor top_p is given, or the temperature is 0."""
        given = (self.temperature, self.top_k, self.top_p)
        return all(value is None for value in given) or self.temperature == 0 or self.top_k == 1
