"""Two other ways to bring pictures into a language model, accounted as options over any of them.

Flamingo (arXiv 2204.14198 §3.1): each medium is resampled to a fixed number of rows, and layers of gated
cross-attention between those of the language model look at them. FastV (arXiv 2403.06764 §4): visual tokens stay for
the first layers and most of them are dropped after layer k. Pure sums; values of 16 bits unless said otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from proteus.families.flops import attention
from proteus.families.language_model import LanguageModel

VALUE_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FlamingoContract:
    """What a medium costs a language model that sees by gated cross-attention. Flamingo's own sizes by default."""

    resampled_rows: int = 64
    cross_every: int = 4  # a cross-attention layer for so many layers of the language model; 7 in Flamingo-80B
    kv_heads: int | None = None  # of a cross-attention layer; None: those of the language model
    head_dim: int | None = None
    marker_tokens: int = 1  # text in the prompt that says where the medium stands; 0 where nothing does

    def __post_init__(self) -> None:
        if min(self.resampled_rows, self.cross_every) < 1 or self.marker_tokens < 0:
            raise ValueError("resampled_rows and cross_every are above 0, marker_tokens is not below 0")

    def cross_layers(self, language: LanguageModel) -> int:
        """One after every `cross_every` layers; layers left over at the end have none."""
        return language.layers // self.cross_every

    def cross_rows(self, media: int) -> int:
        """Rows of media memory that each cross-attention layer keeps."""
        return media * self.resampled_rows

    def cross_kv_bytes(self, language: LanguageModel, media: int, value_bytes: int = VALUE_BYTES) -> int:
        """Keys and values of all cross-attention layers: 2 · cross layers · rows · heads · head_dim · bytes."""
        width = (self.kv_heads or language.kv_heads) * (self.head_dim or language.head_dim)
        return 2 * self.cross_layers(language) * self.cross_rows(media) * width * value_bytes

    def self_kv_bytes(self, language: LanguageModel, media: int, value_bytes: int = VALUE_BYTES) -> int:
        """Keys and values of the markers: a medium takes no other position of the prompt."""
        return language.self_kv_bytes(media * self.marker_tokens, value_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneAfter:
    """Visual tokens that later layers keep: `drop`, a share of them, goes after layer `layer`; FastV's K and R.

    A share is taken as the decimal it is written as, so that 0.7 of 10 leaves 3.
    """

    layer: int = 2  # layers that see every visual token
    drop: float = 0.5

    def __post_init__(self) -> None:
        if self.layer < 1 or not 0 <= self.drop <= 1:
            raise ValueError("layer is above 0 and drop is a share from 0 to 1")

    def kept(self, visual_tokens: int) -> int:
        """Visual tokens left after the layer: ⌈(1 − drop) · n⌉."""
        return math.ceil((1 - Fraction(str(self.drop))) * visual_tokens)

    def tokens_by_layer(self, layers: int, *, visual_tokens: int, text_tokens: int) -> Iterator[tuple[int, int]]:
        """(layers, tokens in each): those before the drop and those after it."""
        before = min(self.layer, layers)
        yield before, text_tokens + visual_tokens
        yield layers - before, text_tokens + self.kept(visual_tokens)

    def kv_bytes(
        self, language: LanguageModel, *, visual_tokens: int, text_tokens: int = 0, value_bytes: int = VALUE_BYTES
    ) -> int:
        """Keys and values: 2 · kv_heads · head_dim · bytes · Σ over layers of the tokens that the layer holds."""
        parts = self.tokens_by_layer(language.layers, visual_tokens=visual_tokens, text_tokens=text_tokens)
        return (
            2 * language.kv_heads * language.head_dim * value_bytes * sum(layers * tokens for layers, tokens in parts)
        )

    def prefill_attention_flops(
        self, language: LanguageModel, *, heads: int, visual_tokens: int, text_tokens: int = 0
    ) -> int:
        """Scores and weighted sums of the prompt pass, all pairs as in arXiv 2403.06764 §4; a multiply-add is two."""
        parts = self.tokens_by_layer(language.layers, visual_tokens=visual_tokens, text_tokens=text_tokens)
        return sum(layers * attention(tokens, tokens, heads * language.head_dim) for layers, tokens in parts)
