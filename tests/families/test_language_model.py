from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus.families.checkpoint import ConfigTable, UnsupportedCheckpoint
from proteus.families.language_model import LanguageModel, read_language_model

LLAMA_8B = LanguageModel(layers=32, kv_heads=8, head_dim=128, hidden_size=4096, context_tokens=8192, cross_layers=8)


def test_a_token_of_an_8b_model_takes_128_kib() -> None:
    assert LLAMA_8B.self_kv_bytes(1) == 128 * 1024


def test_media_memory_is_held_by_the_cross_attention_layers() -> None:
    assert LLAMA_8B.cross_kv_bytes(1601) == 1601 * 2 * 8 * 8 * 128 * 2


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_bytes_add_up_over_tokens(one: int, other: int) -> None:
    assert LLAMA_8B.self_kv_bytes(one + other) == LLAMA_8B.self_kv_bytes(one) + LLAMA_8B.self_kv_bytes(other)
    assert LLAMA_8B.self_kv_bytes(one, value_bytes=1) * 2 == LLAMA_8B.self_kv_bytes(one)


def test_head_width_follows_the_hidden_size_unless_it_is_told() -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4}
    assert read_language_model(ConfigTable("config.json", sizes), "llama").head_dim == 16
    assert read_language_model(ConfigTable("config.json", {**sizes, "head_dim": 24}), "llama").head_dim == 24
    assert read_language_model(ConfigTable("config.json", sizes), "gemma").head_dim == 256


def test_every_head_keeps_its_own_keys_unless_groups_are_told() -> None:
    assert read_language_model(ConfigTable("config.json", {"num_attention_heads": 4}), "llama").kv_heads == 4
    assert read_language_model(ConfigTable("config.json", {"num_key_value_heads": 2}), "llama").kv_heads == 2


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen2_vl_text", "qwen3", "phi4_multimodal"])
def test_groups_that_are_null_are_none_whatever_the_class_would_have(model_type: str) -> None:
    sizes = {"num_attention_heads": 4, "hidden_size": 64, "num_key_value_heads": None}
    assert read_language_model(ConfigTable("config.json", sizes), model_type).kv_heads == 4


def test_cross_attention_layers_are_not_counted_twice() -> None:
    model = read_language_model(ConfigTable("config.json", {}), "mllama_text_model", cross_layers=8)
    assert (model.layers, model.cross_layers) == (32, 8)


def test_the_table_says_which_family_it_is() -> None:
    table = ConfigTable("config.json", {"model_type": "gemma3_text"}, "text_config.")
    assert read_language_model(table, "llama").kv_heads == 4
    with pytest.raises(UnsupportedCheckpoint, match=r"text_config\.model_type = 'mamba'"):
        read_language_model(ConfigTable("config.json", {"model_type": "mamba"}, "text_config."), "llama")
