"""What the language model's configuration says about the memory of a token."""

from __future__ import annotations

from dataclasses import dataclass

from proteus.families.checkpoint import ConfigTable


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModel:
    """Sizes of the language backbone; `layers` are those with self-attention, cross-attention layers are apart."""

    layers: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    context_tokens: int
    cross_layers: int = 0

    def self_kv_bytes(self, tokens: int, value_bytes: int = 2) -> int:
        """Keys and values of `tokens` positions: 2 · layers · tokens · kv_heads · head_dim · bytes (design.md §4)."""
        return 2 * self.layers * tokens * self.kv_heads * self.head_dim * value_bytes

    def cross_kv_bytes(self, rows: int, value_bytes: int = 2) -> int:
        """Keys and values of `rows` of media memory, held once by each cross-attention layer."""
        return 2 * self.cross_layers * rows * self.kv_heads * self.head_dim * value_bytes


@dataclass(frozen=True, slots=True)
class Defaults:
    """What an absent key means: transformers' defaults for one `model_type`."""

    layers: int
    heads: int
    kv_heads: int | None  # None: as many as heads
    head_dim: int | None  # None: hidden_size / heads
    hidden_size: int
    context_tokens: int


DEFAULTS = {
    "llama": Defaults(32, 32, None, None, 4096, 2048),
    "mistral": Defaults(32, 32, 8, None, 4096, 131072),
    "ministral": Defaults(32, 32, 8, None, 4096, 131072),
    "qwen2": Defaults(32, 32, 32, None, 4096, 32768),
    "qwen2_vl_text": Defaults(80, 64, 8, None, 8192, 32768),
    "qwen2_5_vl_text": Defaults(80, 64, 8, None, 8192, 32768),
    "qwen3": Defaults(32, 32, 32, 128, 4096, 32768),
    "qwen3_vl_text": Defaults(32, 32, 32, 128, 4096, 128000),
    "gemma": Defaults(28, 16, 16, 256, 3072, 8192),
    "gemma2": Defaults(26, 8, 4, 256, 2304, 8192),
    "gemma3_text": Defaults(26, 8, 4, 256, 2304, 131072),
    "phi3": Defaults(32, 32, None, None, 3072, 4096),
    "phi4_multimodal": Defaults(32, 32, 8, None, 3072, 131072),
    "mllama_text_model": Defaults(40, 32, 8, None, 4096, 131072),
}


def read_language_model(table: ConfigTable, model_type: str, *, cross_layers: int = 0) -> LanguageModel:
    """Sizes from a text config; `model_type` stands in where the table names none. Cross-attention layers are among
    `num_hidden_layers` and are taken off. Raises UnsupportedCheckpoint naming the key.
    """
    defaults = DEFAULTS[table.one_of("model_type", tuple(DEFAULTS), model_type)]
    heads = table.positive("num_attention_heads", defaults.heads)
    ungrouped = defaults.kv_heads is None or _is_null(table, "num_key_value_heads")
    hidden_size = table.positive("hidden_size", defaults.hidden_size)
    return LanguageModel(
        layers=table.positive("num_hidden_layers", defaults.layers) - cross_layers,
        kv_heads=table.positive("num_key_value_heads", heads if ungrouped else defaults.kv_heads),
        head_dim=table.positive("head_dim", defaults.head_dim or hidden_size // heads),
        hidden_size=hidden_size,
        context_tokens=table.positive("max_position_embeddings", defaults.context_tokens),
        cross_layers=cross_layers,
    )


def _is_null(table: ConfigTable, key: str) -> bool:
    """Whether the file says null: transformers then takes no default of the class."""
    return key in table.values and key not in table
