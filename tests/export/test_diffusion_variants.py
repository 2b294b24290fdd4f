"""Checkpoints that have a part less: SD3 without T5, Flux without embedded guidance."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers.models.attention import BasicTransformerBlock

from export.diffusion_checkpoint import load_parts, read_draw_checkpoint
from export.diffusion_graphs import DrawShape, draw_graphs, replaced
from export.diffusion_parity import CHECKS
from export.diffusion_preview import fit
from export.onnx_graph import export_graph
from export.unet_blocks import LeanTransformer, lean_block
from tests import tiny_diffusers

pytestmark = [pytest.mark.oracle, pytest.mark.slow]


def test_sd3_without_t5_attends_to_as_many_rows_of_zeros_as_in_diffusers(tmp_path: Path) -> None:
    checkpoint = read_draw_checkpoint(tiny_diffusers.sd3(tmp_path / "checkpoint", with_t5=False))
    parts = load_parts(checkpoint)
    shape = DrawShape.of(parts)
    assert (shape.text_tokens, len(shape.input_tokens)) == (18 + 256, 2)
    graph = next(graph for graph in draw_graphs(parts, shape) if graph.name == "text_encoder")
    cases = [row.case for row in CHECKS["text_encoder"](export_graph(graph, tmp_path), parts, shape)]
    assert cases == ["batch 1", "batch 1, pooled", "batch 3", "batch 3, pooled"]


def test_flux_without_embedded_guidance_has_no_such_input(tmp_path: Path) -> None:
    parts = load_parts(read_draw_checkpoint(tiny_diffusers.flux(tmp_path / "checkpoint", guidance_embeds=False)))
    shape = DrawShape.of(parts)
    assert not shape.embedded_guidance
    graph = next(graph for graph in draw_graphs(parts, shape) if graph.name == "denoiser")
    assert [port.name for port in graph.inputs] == ["latents", "timestep", "text_states", "pooled"]
    assert len(list(CHECKS["denoiser"](export_graph(graph, tmp_path), parts, shape))) == 3


def test_preview_map_finds_the_colours_and_gives_silent_channels_no_weight() -> None:
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(4000, 3, generator=generator) * torch.tensor([1.0, 2.0, 0.01])
    colours = 0.5 + latents @ torch.tensor([[0.1, 0.0, -0.1], [0.0, 0.05, 0.0], [5.0, -5.0, 5.0]])
    weights = torch.tensor(fit(latents, colours))
    assert torch.allclose(weights[[0, 1, 3]], torch.tensor([[0.1, 0, -0.1], [0, 0.05, 0], [0.5, 0.5, 0.5]]), atol=2e-3)
    assert weights[2].abs().max() < 0.1


def test_blocks_are_replaced_in_a_copy_that_shares_the_other_weights(tmp_path: Path) -> None:
    unet = load_parts(read_draw_checkpoint(tiny_diffusers.sd15(tmp_path / "checkpoint"))).denoiser
    lean = replaced(unet, lean_block)
    assert not any(isinstance(part, LeanTransformer) for part in unet.modules())
    assert sum(isinstance(part, LeanTransformer) for part in lean.modules()) == 4
    assert lean.conv_in is unet.conv_in and lean is not unet


def test_blocks_of_another_kind_stay_as_they_are(tmp_path: Path) -> None:
    unet = load_parts(read_draw_checkpoint(tiny_diffusers.sd15(tmp_path / "checkpoint"))).denoiser
    for part in unet.modules():
        if isinstance(part, BasicTransformerBlock):
            part.norm_type = "ada_norm"
    assert replaced(unet, lean_block) is unet
    assert lean_block(torch.nn.Linear(1, 1)) is None
