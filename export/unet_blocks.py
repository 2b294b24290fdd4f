"""The attention blocks of a UNet with fewer operators: the same weights, arranged for a runtime that fuses little.

R rows, N = R h w tokens of all rows, C channels, H heads of d, T text tokens, E text width. Tokens are one matrix
(N, C) throughout, so that a linear layer is one Gemm with its bias, and shapes are constants wherever they can be.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from diffusers.models.activations import GEGLU
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.attention_processor import Attention
from diffusers.models.transformers.transformer_2d import Transformer2DModel
from torch import Tensor, nn


def lean_block(module: nn.Module) -> nn.Module | None:
    """What stands for `module`: blocks as Stable Diffusion has them; None of anything else, which stays as it is."""
    known = isinstance(module, Transformer2DModel) and module.is_input_continuous
    return LeanTransformer(module) if known and all(map(_is_plain, module.transformer_blocks)) else None


def _is_plain(block: nn.Module) -> bool:
    return (
        isinstance(block, BasicTransformerBlock)
        and block.norm_type == "layer_norm"
        and block.pos_embed is None
        and block.attn2 is not None
        and not block.only_cross_attention
        and isinstance(block.ff.net[0], GEGLU)
        and all(_is_plain_attention(attention) for attention in (block.attn1, block.attn2))
    )


def _is_plain_attention(attention: Attention) -> bool:
    odd = (attention.group_norm, attention.spatial_norm, attention.norm_q, attention.norm_k, attention.norm_cross)
    return (
        all(part is None for part in odd) and attention.rescale_output_factor == 1 and not attention.residual_connection
    )


class Linear(nn.Module):
    """(N, in) to (N, out), from a linear layer or a convolution of one pixel."""

    def __init__(self, layer: nn.Module, *, scale: float = 1.0, part: slice = slice(None)) -> None:
        super().__init__()
        weight = layer.weight.detach().flatten(1)[part]
        self.weight = nn.Parameter((weight * scale).t().contiguous())
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach()[part] * scale)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight if self.bias is None else torch.addmm(self.bias, x, self.weight)


class LeanAttention(nn.Module):
    """Of tokens (N, C) to themselves, or to text (R T, E)."""

    def __init__(self, attention: Attention, *, to_text: int | None = None) -> None:
        super().__init__()
        self.heads = attention.heads
        self.query = Linear(attention.to_q, scale=attention.scale)
        self.key, self.value = Linear(attention.to_k), Linear(attention.to_v)
        self.out = Linear(attention.to_out[0])

    def forward(self, x: Tensor, rows: Tensor, grid: Sequence[int], text: Tensor | None, text_tokens: int) -> Tensor:
        query = self._heads(self.query(x), rows, grid).transpose(1, 2)  # (R, H, S, d)
        if text is None:
            key, value = (self._heads(part(x), rows, grid) for part in (self.key, self.value))
        else:
            key, value = (self._text_heads(part(text), grid[0], text_tokens) for part in (self.key, self.value))
        weights = torch.softmax(query @ key.permute(0, 2, 3, 1), dim=-1)
        mixed = (weights @ value.transpose(1, 2)).transpose(1, 2)  # (R, S, H, d)
        return self.out(reshape(mixed, (-1, x.shape[1]), x.shape))

    def _heads(self, x: Tensor, rows: Tensor, grid: Sequence[int]) -> Tensor:
        width = x.shape[1] // self.heads
        rest = torch.tensor([-1, self.heads, width])
        sizes = torch.onnx.ops.symbolic("Concat", (rows, rest), {"axis": 0}, dtype=torch.int64, shape=(4,))
        shape = (grid[0], grid[1] * grid[2], self.heads, width)
        return torch.onnx.ops.symbolic("Reshape", (x, sizes), dtype=x.dtype, shape=shape)

    def _text_heads(self, x: Tensor, rows: int, text_tokens: int) -> Tensor:
        width = x.shape[1] // self.heads
        return reshape(x, (-1, text_tokens, self.heads, width), (rows, text_tokens, self.heads, width))


class LeanBlock(nn.Module):
    def __init__(self, block: BasicTransformerBlock) -> None:
        super().__init__()
        self.norms = nn.ModuleList((block.norm1, block.norm2, block.norm3))
        self.to_self, self.to_text = LeanAttention(block.attn1), LeanAttention(block.attn2)
        gated = block.ff.net[0].proj
        half = gated.weight.shape[0] // 2
        # Not one product whose halves are taken apart: that copies them.
        self.hidden, self.gate = Linear(gated, part=slice(half)), Linear(gated, part=slice(half, None))
        self.down = Linear(block.ff.net[2])

    def forward(self, x: Tensor, rows: Tensor, grid: Sequence[int], text: Tensor, text_tokens: int) -> Tensor:
        x = self.to_self(self.norms[0](x), rows, grid, None, 0) + x
        x = self.to_text(self.norms[1](x), rows, grid, text, text_tokens) + x
        normed = self.norms[2](x)
        return self.down(self.hidden(normed) * nn.functional.gelu(self.gate(normed))) + x


class LeanTransformer(nn.Module):
    """Stands for diffusers' Transformer2DModel."""

    has_cross_attention = True

    def __init__(self, model: Transformer2DModel) -> None:
        super().__init__()
        self.norm = model.norm
        self.enter, self.leave = Linear(model.proj_in), Linear(model.proj_out)
        self.blocks = nn.ModuleList(LeanBlock(block) for block in model.transformer_blocks)

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor, **_: object) -> tuple[Tensor]:
        rows, channels, height, width = hidden_states.shape
        count = torch.onnx.ops.symbolic(
            "Shape", (hidden_states,), {"start": 0, "end": 1}, dtype=torch.int64, shape=(1,)
        )
        text = reshape(
            encoder_hidden_states,
            (-1, encoder_hidden_states.shape[2]),
            (rows * encoder_hidden_states.shape[1], encoder_hidden_states.shape[2]),
        )
        x = self.norm(hidden_states).permute(0, 2, 3, 1)
        x = self.enter(reshape(x, (-1, channels), (rows * height * width, channels)))
        for block in self.blocks:
            x = block(x, count, (rows, height, width), text, encoder_hidden_states.shape[1])
        x = self.leave(x).reshape(rows, height, width, channels)
        return (x.permute(0, 3, 1, 2) + hidden_states,)


def reshape(x: Tensor, sizes: Sequence[int], shape: Sequence[int]) -> Tensor:
    """To constant sizes (-1: the rest); the tracer would compute them from x's, with five operators."""
    return torch.onnx.ops.symbolic("Reshape", (x, torch.tensor(list(sizes))), dtype=x.dtype, shape=tuple(shape))
