"""The three graphs of a text-to-image checkpoint, traced from wrappers around diffusers' and transformers' modules.

R rows (guidance branches of pictures), B batch, T text tokens, E width of a text state, P of the pooled text, Z latent
channels, h and w sides in latents, f px a latent. Everything is float32. Whether a graph is right is not known here:
see diffusion_parity.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from export.diffusion_checkpoint import Parts, TextPart
from export.onnx_graph import Graph, Port
from export.unet_blocks import lean_block

MAX_SIDE_LATENTS = 2048  # of Flux, which takes two of them for one position
CACHE_KEY_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawShape:
    """The fixed dims of a loaded checkpoint."""

    input_tokens: tuple[int, ...]  # as checkpoint.texts
    text_tokens: int
    text_width: int
    pooled_width: int  # 0: the denoiser reads no pooled text
    latent_channels: int
    vae_factor: int
    size_multiple: int
    embedded_guidance: bool
    max_side: int | None  # latents; None: any

    @classmethod
    def of(cls, parts: Parts) -> DrawShape:
        config, vae = parts.denoiser.config, parts.vae.config
        tokens = tuple(_tokens(parts, index) for index in range(len(parts.tokenizers)))
        family = parts.checkpoint.kind.family
        encoder = text_encoder(parts)
        with torch.no_grad():
            states = encoder(*(torch.zeros(1, count, dtype=torch.int64) for count in tokens))
        states, pooled = states if isinstance(states, tuple) else (states, None)
        return cls(
            input_tokens=tokens,
            text_tokens=states.shape[1],
            text_width=states.shape[2],
            pooled_width=0 if pooled is None else pooled.shape[1],
            latent_channels=vae.latent_channels,
            vae_factor=2 ** (len(vae.block_out_channels) - 1),
            size_multiple={
                "unet": lambda: 2 ** (len(config.block_out_channels) - 1),
                "sd3": lambda: config.patch_size,
                "flux": lambda: 2,
            }[family](),
            embedded_guidance=family == "flux" and bool(config.guidance_embeds),
            max_side={
                "unet": lambda: None,
                "sd3": lambda: config.pos_embed_max_size * config.patch_size,
                "flux": lambda: MAX_SIDE_LATENTS,
            }[family](),
        )

    @property
    def example_sides(self) -> tuple[int, int]:
        """Height and width in latents that graphs are traced with."""
        return 3 * self.size_multiple, 2 * self.size_multiple


def _tokens(parts: Parts, index: int) -> int:
    """As diffusers' pipeline pads: SD3 takes the first tokenizer's length for both CLIPs."""
    text = parts.checkpoint.texts[index]
    shared = parts.checkpoint.kind.family == "sd3" and text.most_tokens is None
    length: int = parts.tokenizers[0 if shared else index].model_max_length
    most = text.most_tokens or parts.encoders[index].config.max_position_embeddings
    return min(length, most)


class UnetText(nn.Module):
    """CLIP's last states, with its final normalisation."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.encoder(input_ids).last_hidden_state  # (B, T, E)


class Sd3Text(nn.Module):
    """Both CLIPs' states before the last layer side by side, zeros up to E, T5's states below; both pooled texts."""

    def __init__(self, encoders: tuple[nn.Module, ...], width: int, most_tokens: int) -> None:
        super().__init__()
        self.clips = nn.ModuleList(encoders[:2])
        self.t5 = encoders[2] if len(encoders) > 2 else None
        self.width, self.most_tokens = width, most_tokens

    def forward(self, *input_ids: Tensor) -> tuple[Tensor, Tensor]:
        outputs = [clip(ids, output_hidden_states=True) for clip, ids in zip(self.clips, input_ids[:2], strict=True)]
        states = torch.cat([output.hidden_states[-2] for output in outputs], dim=-1)
        states = nn.functional.pad(states, (0, self.width - states.shape[-1]))
        # Without T5, diffusers has as many rows of zeros as it would give T5 tokens, and they are attended to.
        below = (
            self.t5(input_ids[2])[0]
            if self.t5 is not None
            else torch.zeros(1, self.most_tokens, self.width).expand(states.shape[0], -1, -1)
        )
        return torch.cat([states, below], dim=1), torch.cat([output.text_embeds for output in outputs], dim=-1)


class FluxText(nn.Module):
    """T5's states, CLIP's pooled text."""

    def __init__(self, clip: nn.Module, t5: nn.Module) -> None:
        super().__init__()
        self.clip, self.t5 = clip, t5

    def forward(self, input_ids: Tensor, input_ids_2: Tensor) -> tuple[Tensor, Tensor]:
        return self.t5(input_ids_2)[0], self.clip(input_ids).pooler_output


class Echoing(nn.Module):
    """A text encoder that hands back the cache key it was asked with: a cache may mistake one request for another."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: list[Tensor], cache_key: Tensor) -> tuple[Tensor, ...]:
        states = self.encoder(*input_ids)
        echo = torch.onnx.ops.symbolic("Identity", (cache_key,), dtype=cache_key.dtype, shape=cache_key.shape)
        return (*(states if isinstance(states, tuple) else (states,)), echo)


def text_encoder(parts: Parts) -> nn.Module:
    """input_ids… → text states, and pooled text where the denoiser reads it."""
    match parts.checkpoint.kind.family:
        case "unet":
            return UnetText(parts.encoders[0]).eval()
        case "sd3":
            most_tokens = parts.checkpoint.kind.texts[2].most_tokens or 0
            return Sd3Text(parts.encoders, parts.denoiser.config.joint_attention_dim, most_tokens).eval()
        case "flux":
            return FluxText(*parts.encoders).eval()


class UnetDenoiser(nn.Module):
    def __init__(self, unet: nn.Module) -> None:
        super().__init__()
        self.unet = replaced(unet, lean_block)

    def forward(self, latents: Tensor, timestep: Tensor, text_states: Tensor) -> Tensor:
        return self.unet(latents, timestep, text_states, return_dict=False)[0]


class Sd3Denoiser(nn.Module):
    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        positions = Sd3Patches(transformer.pos_embed)
        self.transformer = replaced(transformer, lambda part: positions if part is transformer.pos_embed else None)

    def forward(self, latents: Tensor, timestep: Tensor, text_states: Tensor, pooled: Tensor) -> Tensor:
        return self.transformer(latents, text_states, pooled, timestep, return_dict=False)[0]


class Sd3Patches(nn.Module):
    """Patches, and the middle of the table of positions. Of diffusers' own the tracer takes a row too many where a side
    is odd.
    """

    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        self.proj, self.side = embed.proj, embed.pos_embed_max_size
        self.register_buffer("table", embed.pos_embed.detach().reshape(self.side, self.side, -1))

    def forward(self, latent: Tensor) -> Tensor:
        patches = self.proj(latent)  # (R, D, rows, columns)
        down, across = (torch.arange(count) + (self.side - count) // 2 for count in patches.shape[2:])
        places = self.table.index_select(0, down).index_select(1, across)
        return patches.flatten(2).transpose(1, 2) + places.flatten(0, 1)


class FluxDenoiser(nn.Module):
    """Packs 2 x 2 latents to a token, gives each its row and column, and unpacks."""

    def __init__(self, transformer: nn.Module, text_tokens: int) -> None:
        super().__init__()
        positions = FluxPositions(transformer.pos_embed)
        self.transformer = replaced(transformer, lambda part: positions if part is transformer.pos_embed else None)
        self.register_buffer("text_ids", torch.zeros(text_tokens, 3, dtype=torch.int64))

    def forward(
        self, latents: Tensor, timestep: Tensor, text_states: Tensor, pooled: Tensor, guidance: Tensor | None = None
    ) -> Tensor:
        rows, channels, height, width = latents.shape
        tokens = latents.unflatten(2, (-1, 2)).unflatten(4, (-1, 2))  # (R, Z, h / 2, 2, w / 2, 2)
        tokens = tokens.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (R, h w / 4, 4 Z)
        down, across = torch.arange(height // 2), torch.arange(width // 2)
        places = torch.stack(
            [
                torch.zeros_like(down)[:, None].expand(-1, width // 2),
                down[:, None].expand(-1, width // 2),
                across[None].expand(height // 2, -1),
            ],
            dim=-1,
        )
        prediction = self.transformer(
            tokens,
            encoder_hidden_states=text_states,
            pooled_projections=pooled,
            timestep=timestep / 1000,
            img_ids=places.flatten(0, 1),
            txt_ids=self.text_ids,
            guidance=guidance,
            return_dict=False,
        )[0]
        grid = prediction.reshape(rows, height // 2, width // 2, channels, 2, 2).permute(0, 3, 1, 4, 2, 5)
        return grid.reshape(rows, channels, height, width)


class FluxPositions(nn.Module):
    """Rotations of every position from a table: diffusers computes them in float64, which not every runtime has."""

    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        line = torch.arange(MAX_SIDE_LATENTS // 2)
        cos, sin = embed(line[:, None].expand(-1, len(embed.axes_dim)))
        self.widths = list(embed.axes_dim)
        self.register_buffer("cos", cos.float())
        self.register_buffer("sin", sin.float())

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """(S, axes) to cosines and sines (S, d)."""
        parts = [
            [nn.functional.embedding(ids[:, axis], part) for axis, part in enumerate(table.split(self.widths, dim=1))]
            for table in (self.cos, self.sin)
        ]
        return torch.cat(parts[0], dim=1), torch.cat(parts[1], dim=1)


def denoiser(parts: Parts, shape: DrawShape) -> nn.Module:
    """latents, timestep (0…1000), text states, … → prediction."""
    match parts.checkpoint.kind.family:
        case "unet":
            return UnetDenoiser(parts.denoiser).eval()
        case "sd3":
            return Sd3Denoiser(parts.denoiser).eval()
        case "flux":
            return FluxDenoiser(parts.denoiser, shape.text_tokens).eval()


class VaeDecoder(nn.Module):
    """The denoiser's latents to 8-bit pixels, as diffusers' image processor makes them."""

    def __init__(self, vae: nn.Module) -> None:
        super().__init__()
        self.vae = vae
        self.scale, self.shift = vae.config.scaling_factor, vae.config.shift_factor or 0.0

    def forward(self, latents: Tensor) -> Tensor:
        decoded = self.vae.decode(latents / self.scale + self.shift, return_dict=False)[0]
        unit = (decoded / 2 + 0.5).clamp(0, 1)
        return (unit.permute(0, 2, 3, 1) * 255).round().to(torch.uint8)  # (B, H, W, 3), halves to even


def draw_graphs(parts: Parts, shape: DrawShape) -> Iterator[Graph]:
    """The graphs of a checkpoint, one after the other."""
    yield _text_encoder(parts, shape)
    yield _denoiser(parts, shape)
    latents = Port(name="latents", dims=("batch", shape.latent_channels, "height", "width"))
    height, width = shape.example_sides
    yield Graph(
        name="vae_decoder",
        path=Path("vae_decoder/1/model.onnx"),
        module=VaeDecoder(parts.vae).eval(),
        example=(torch.zeros(2, shape.latent_channels, height, width),),
        inputs=(latents,),
        outputs=(Port(name="pixels", dims=("batch", "height_px", "width_px", 3)),),
    )


def _text_encoder(parts: Parts, shape: DrawShape) -> Graph:
    texts: tuple[TextPart, ...] = parts.checkpoint.texts
    sizes = list(zip(texts, shape.input_tokens, strict=True))
    pooled = (Port(name="pooled", dims=("batch", shape.pooled_width)),) if shape.pooled_width else ()
    return Graph(
        name="text_encoder",
        path=Path("text_encoder/1/model.onnx"),
        module=Echoing(text_encoder(parts)).eval(),
        example=(
            [torch.zeros(2, tokens, dtype=torch.int64) for _, tokens in sizes],
            torch.zeros(2, CACHE_KEY_BYTES, dtype=torch.uint8),
        ),
        inputs=(
            *(Port(name=text.tensor, dims=("batch", tokens)) for text, tokens in sizes),
            Port(name="cache_key", dims=("batch", CACHE_KEY_BYTES)),
        ),
        outputs=(
            Port(name="text_states", dims=("batch", shape.text_tokens, shape.text_width)),
            *pooled,
            Port(name="cache_key_echo", dims=("batch", CACHE_KEY_BYTES)),
        ),
    )


def _denoiser(parts: Parts, shape: DrawShape) -> Graph:
    latents = ("rows", shape.latent_channels, "height", "width")
    inputs = [
        Port(name="latents", dims=latents),
        Port(name="timestep", dims=("rows",)),
        Port(name="text_states", dims=("rows", shape.text_tokens, shape.text_width)),
    ]
    example = [
        torch.zeros(2, shape.latent_channels, *shape.example_sides),
        torch.full((2,), 500.0),
        torch.zeros(2, shape.text_tokens, shape.text_width),
    ]
    if shape.pooled_width:
        inputs.append(Port(name="pooled", dims=("rows", shape.pooled_width)))
        example.append(torch.zeros(2, shape.pooled_width))
    if shape.embedded_guidance:
        inputs.append(Port(name="guidance", dims=("rows",)))
        example.append(torch.full((2,), 3.5))
    return Graph(
        name="denoiser",
        path=Path("denoiser/1/denoiser.onnx"),
        module=denoiser(parts, shape),
        example=tuple(example),
        inputs=tuple(inputs),
        outputs=(Port(name="prediction", dims=latents),),
    )


def replaced(module: nn.Module, make: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    """`module` with parts that `make` has another for; weights are shared, and `module` itself stays as it is."""
    new = make(module)
    if new is not None:
        return new
    children = {name: replaced(child, make) for name, child in module.named_children()}
    if all(children[name] is child for name, child in module.named_children()):
        return module
    changed = copy.copy(module)
    changed._modules = {**module._modules, **children}
    return changed
