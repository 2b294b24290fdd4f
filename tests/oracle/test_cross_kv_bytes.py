"""Bytes of the media memory against the cache that transformers fills in layers with and without cross-attention."""

from __future__ import annotations

import pytest

from proteus.families.checkpoint import ConfigTable
from proteus.families.language_model import read_language_model

pytestmark = pytest.mark.oracle
TOKENS, ROWS = 11, 34
CROSS_LAYERS = [1, 3]
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "cross_attention_layers": CROSS_LAYERS,
    "vocab_size": 50,
    "pad_token_id": 0,
}


def test_layers_of_both_kinds_hold_what_they_are_counted_for() -> None:
    import torch
    from transformers import DynamicCache, MllamaTextModel
    from transformers.models.mllama.configuration_mllama import MllamaTextConfig

    config = MllamaTextConfig(rope_parameters={"rope_type": "default", "rope_theta": 10_000.0}, **SIZES)
    model = MllamaTextModel._from_config(config, dtype=torch.bfloat16).eval()
    cache = DynamicCache(config=config)
    with torch.no_grad():
        model(
            input_ids=torch.ones(1, TOKENS, dtype=torch.long),
            cross_attention_states=torch.zeros(1, ROWS, 64, dtype=torch.bfloat16),
            cache=cache,
            use_cache=True,
        )
    filled = [layer.keys.nbytes + layer.values.nbytes for layer in cache.layers]
    crossed = sum(filled[layer] for layer in CROSS_LAYERS)
    ours = read_language_model(ConfigTable("config.json", SIZES), "mllama_text_model", cross_layers=len(CROSS_LAYERS))
    assert ours.cross_kv_bytes(ROWS) == crossed
    assert ours.self_kv_bytes(TOKENS) == sum(filled) - crossed
