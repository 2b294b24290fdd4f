"""The language model as one graph over fixed slots: ids and visual rows in, logits of the last position out.

B batch, S new positions, R visual rows, T slots' length (`context`), D width, H heads and G key/value heads of d, V
vocabulary. The modules take transformers' weights and stand for its layers with fewer, larger operators: packed
projections, rotation within attention, additions within normalisations. parity.py says whether they are right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, LlavaForConditionalGeneration

_PROBE = "proteus_probe"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """What transformers' own code gives to the attention function of one layer."""

    heads: int
    kv_heads: int
    head_dim: int
    scaling: float
    window: int | None  # tokens that a token sees, itself among them; None: all


class SlotDecoder(nn.Module):
    """One call of the language model over fixed slots; logits of the last position only."""

    def __init__(self, model: LlavaForConditionalGeneration) -> None:
        super().__init__()
        text = model.model.language_model
        self.embedding = model.get_input_embeddings()
        self.layers = nn.ModuleList(
            SlotLayer(layer, call) for layer, call in zip(text.layers, attention_calls(model), strict=True)
        )
        self.norm = text.norm
        self.head = model.lm_head
        cos, sin = rotation(model)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(
        self,
        input_ids: Tensor,
        visual_rows: Tensor,
        visual_places: Tensor,
        seqlens_k: Tensor,
        total_len: Tensor,
        past: list[Tensor],
    ) -> tuple[Tensor, ...]:
        embeds = self.embedding(input_ids)
        hidden = torch.onnx.ops.symbolic(
            "ScatterND", (embeds, visual_places, visual_rows), dtype=embeds.dtype, shape=embeds.shape
        )
        present: list[Tensor] = []
        delta = None
        for index, layer in enumerate(self.layers):
            normed, hidden = layer.enter(hidden, delta)
            slot = (*past[2 * index : 2 * index + 2], seqlens_k, total_len, self.cos, self.sin)
            attended, *new = layer.attend(normed, slot)
            present += new
            if index == len(self.layers) - 1:  # nobody reads the other positions any more
                attended, hidden = attended[:, -1], hidden[:, -1]
            delta, hidden = layer.leave(attended, hidden)
        normed, _ = add_and_norm(hidden, delta, self.norm)
        return self.head(normed), *present


class SlotLayer(nn.Module):
    """One layer in three parts, so that each addition meets the normalisation after it: (B, S, D) throughout."""

    def __init__(self, layer: nn.Module, call: AttentionCall) -> None:
        super().__init__()
        attention = layer.self_attn
        self.call = call
        self.norm_in, self.norm_mid = layer.input_layernorm, layer.post_attention_layernorm
        self.qkv = Packed(attention.q_proj, attention.k_proj, attention.v_proj)
        self.q_norm, self.k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        self.out = Packed(attention.o_proj)
        # Not packed: taking the halves apart again copies them, and a prefill is slower for it (decisions/0012).
        self.gate, self.up = Packed(layer.mlp.gate_proj), Packed(layer.mlp.up_proj)
        self.act = layer.mlp.act_fn
        self.down = Packed(layer.mlp.down_proj)

    def enter(self, hidden: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor]:
        """The attention's input, and the residual stream with the layer before added."""
        return add_and_norm(hidden, delta, self.norm_in)

    def attend(self, normed: Tensor, slot: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """(B, S, H d), and the slots' new keys and values."""
        packed = self.qkv(normed)
        if self.q_norm is None:
            return slot_attention(self.call, (packed, None, None), slot)
        call = self.call
        query, key, value = packed.split(self.qkv.widths, dim=-1)
        query, key = (
            norm(x.unflatten(-1, (-1, call.head_dim)), by).flatten(-2)
            for x, by in ((query, self.q_norm), (key, self.k_norm))
        )
        return slot_attention(call, (query, key, value), slot)

    def leave(self, attended: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What the layer adds to the residual stream in the end, and that stream after attention."""
        normed, hidden = add_and_norm(hidden, self.out(attended), self.norm_mid)
        return self.down(self.act(self.gate(normed)) * self.up(normed)), hidden


class Packed(nn.Module):
    """Linear layers of one input as one product with a transposed weight, their outputs side by side."""

    def __init__(self, *linears: nn.Linear) -> None:
        super().__init__()
        self.widths = [linear.out_features for linear in linears]
        self.weight = nn.Parameter(torch.cat([linear.weight for linear in linears]).detach().t().contiguous())
        biases = [linear.bias if linear.bias is not None else torch.zeros(linear.out_features) for linear in linears]
        biased = any(linear.bias is not None for linear in linears)
        self.bias = nn.Parameter(torch.cat(biases).detach()) if biased else None

    def forward(self, x: Tensor) -> Tensor:
        product = x @ self.weight
        return product if self.bias is None else product + self.bias


def slot_attention(
    call: AttentionCall, qkv: tuple[Tensor, Tensor | None, Tensor | None], slot: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """com.microsoft::GroupQueryAttention: rotates, appends to the slots (in place where a runtime binds past and
    present to the same memory), attends. `qkv` is one packed tensor, or three of (B, S, heads d).
    """
    past_key, past_value, *_ = slot
    attributes: dict[str, int | float] = {
        "num_heads": call.heads,
        "kv_num_heads": call.kv_heads,
        "scale": call.scaling,
        "do_rotary": 1,
    }
    if call.window is not None:
        attributes["local_window_size"] = call.window
    return torch.onnx.ops.symbolic_multi_out(
        "com.microsoft::GroupQueryAttention",
        (*qkv, *slot),
        attributes,
        dtypes=(past_key.dtype,) * 3,
        shapes=((*qkv[0].shape[:2], call.heads * call.head_dim), past_key.shape, past_value.shape),
        version=1,
    )


def norm(x: Tensor, by: nn.Module) -> Tensor:
    """Root-mean-square normalisation over the last dim."""
    return torch.onnx.ops.symbolic(
        "SimplifiedLayerNormalization",
        (x, by.weight),
        {"axis": -1, "epsilon": by.variance_epsilon, "stash_type": 1},
        dtype=x.dtype,
        shape=x.shape,
    )


def add_and_norm(hidden: Tensor, delta: Tensor | None, by: nn.Module) -> tuple[Tensor, Tensor]:
    """Normalised sum, and the sum."""
    if delta is None:
        return norm(hidden, by), hidden
    normed, _, _, total = torch.onnx.ops.symbolic_multi_out(
        "com.microsoft::SkipSimplifiedLayerNormalization",
        (hidden, delta, by.weight),
        {"epsilon": by.variance_epsilon},
        dtypes=(hidden.dtype,) * 4,
        shapes=(hidden.shape, (1,), (1,), hidden.shape),
        version=1,
    )
    return normed, total


@torch.no_grad()
def rotation(model: LlavaForConditionalGeneration) -> tuple[Tensor, Tensor]:
    """Cosines and sines (positions, d / 2) of the checkpoint's own rotary module, its scaling of attention included."""
    text = model.model.language_model
    positions = torch.arange(text.config.max_position_embeddings)[None]
    cos, sin = text.rotary_emb(torch.zeros(1), positions)
    half = cos.shape[-1] // 2  # the module repeats each angle for the other half of a head
    return cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous()


def attention_calls(model: LlavaForConditionalGeneration) -> list[AttentionCall]:
    """Asked of transformers' own forward, layer by layer."""
    text = model.model.language_model
    calls: list[AttentionCall] = []
    with torch.no_grad(), _attention(text.config, _PROBE):
        text(input_ids=torch.zeros(1, 2, dtype=torch.int64), use_cache=False, calls=calls)
    return calls


def _note_call(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    calls: list[AttentionCall],
    sliding_window: int | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """q (B, H, S, d), k and v (B, G, S, d)."""
    calls.append(
        AttentionCall(
            heads=query.shape[1],
            kv_heads=key.shape[1],
            head_dim=query.shape[3],
            scaling=float(scaling),
            window=sliding_window,
        )
    )
    return query.transpose(1, 2), None


AttentionInterface.register(_PROBE, _note_call)


@contextmanager
def _attention(config: object, name: str) -> Iterator[None]:
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before
