"""Bytes of keys and values against the cache that transformers fills for a tiny model of each text family."""

from __future__ import annotations

from typing import Any

import pytest

from proteus.families.checkpoint import ConfigTable
from proteus.families.language_model import DEFAULTS, read_language_model

pytestmark = pytest.mark.oracle
TOKENS = 11
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 50,
    "pad_token_id": 0,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
ATTENTION = {
    "every head has its own": ("llama", SIZES),
    "two heads share": ("qwen2", GROUPED),
    "one for all heads, of a width of their own": ("gemma", {**GROUPED, "num_key_value_heads": 1, "head_dim": 24}),
    "normalised, of a width of their own": ("qwen3", {**GROUPED, "head_dim": 24}),
    "one projection for all three": ("phi3", GROUPED),
    "windows longer than the prompt": ("gemma3_text", {**GROUPED, "head_dim": 24, "sliding_window": 16}),
    "a window on every layer": ("mistral", {**GROUPED, "sliding_window": 16}),
    "positions in three directions": (
        "qwen2_5_vl_text",
        {**GROUPED, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}},
    ),
}


@pytest.mark.parametrize("kind", ATTENTION)
def test_bytes_are_those_of_the_cache(kind: str) -> None:
    import torch
    from transformers import CONFIG_MAPPING, AutoModel, DynamicCache

    model_type, sizes = ATTENTION[kind]
    config = CONFIG_MAPPING[model_type](**sizes)
    model = AutoModel.from_config(config, dtype=torch.bfloat16).eval()
    cache = DynamicCache(config=config)
    with torch.no_grad():
        model(input_ids=torch.ones(1, TOKENS, dtype=torch.long), cache=cache, use_cache=True)
    filled = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    ours = read_language_model(ConfigTable("config.json", sizes), model_type).self_kv_bytes(TOKENS)
    assert ours == filled


@pytest.mark.parametrize("model_type", sorted(DEFAULTS))
def test_absent_keys_mean_what_they_mean_to_transformers(model_type: str) -> None:
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[model_type]()
    ours = read_language_model(ConfigTable("config.json", {}), model_type)
    heads = config.num_attention_heads
    assert (ours.layers, ours.hidden_size) == (config.num_hidden_layers, config.hidden_size)
    assert ours.kv_heads == (getattr(config, "num_key_value_heads", None) or heads)
    assert ours.head_dim == (getattr(config, "head_dim", None) or config.hidden_size // heads)
    assert ours.context_tokens == config.max_position_embeddings
