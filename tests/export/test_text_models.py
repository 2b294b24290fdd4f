"""The decoder graph of every text model that is accepted, and of every kind of rotation, against transformers."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from transformers import AutoConfig, CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration

from export.checkpoint import ROPE_TYPES, TEXT_MODELS
from export.language_graph import attention_calls
from export.onnx_graph import export_graph, graphs
from export.parity import check_decoder

pytestmark = pytest.mark.oracle

THETA = {"rope_theta": 5_000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, **THETA}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    **THETA,
}
LINEAR = {"rope_type": "linear", "factor": 2.0, **THETA}
DEFAULT = {"rope_type": "default", **THETA}
# One layer sees everything, the other 16 tokens.
MIXED = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
CASES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True},
    "mistral": {"model_type": "mistral", "rope_parameters": LINEAR, "sliding_window": 16},
    "qwen2": {"model_type": "qwen2", "rope_parameters": DEFAULT, **MIXED},
    "qwen3": {"model_type": "qwen3", "rope_parameters": YARN, "head_dim": 32, **MIXED},
}


def build(case: dict[str, Any]) -> LlavaForConditionalGeneration:
    settings = {
        "vocab_size": 90,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        **case,
    }
    vision = CLIPVisionConfig(
        image_size=16, patch_size=8, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    config = LlavaConfig(
        vision_config=vision, text_config=AutoConfig.for_model(**settings), image_token_index=3, image_seq_length=4
    )
    model = LlavaForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            scale = 1.2 / math.sqrt(math.prod(parameter.shape[1:])) if parameter.dim() > 1 else 0.3
            parameter.copy_(noise * scale + (1.0 if "norm" in name else 0.0))
    return model


@pytest.mark.parametrize("name", list(CASES))
def test_prefill_chunks_and_ragged_decode_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = build(CASES[name])
    graph = next(graph for graph in graphs(model) if graph.name == "decoder")
    path = export_graph(graph, tmp_path)
    assert {row.case.split()[0] for row in check_decoder(path, model)} == {"prefill", "ragged", "newcomer"}
    operators = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert operators["MatMul"] == 5 * len(model.model.language_model.layers)


def test_every_accepted_text_model_and_rotation_is_among_the_cases() -> None:
    assert {case["model_type"] for case in CASES.values()} == set(TEXT_MODELS)
    assert {case["rope_parameters"]["rope_type"] for case in CASES.values()} == set(ROPE_TYPES)


def test_windows_are_those_of_transformers_own_layers() -> None:
    assert [call.window for call in attention_calls(build(CASES["mistral"]))] == [16, 16]
    assert [call.window for call in attention_calls(build(CASES["qwen3"]))] == [None, 16]
