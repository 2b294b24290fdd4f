"""Graphs as large as people serve, with random weights: LLaVA-1.5's encoder and connector, SD 1.5's stages.

`python -m export.tensorrt_sizes SIZE STAGE FOLDER`: traced by the exporter's own code, into a deployment folder as an
export writes it. Nothing is fetched.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from export.diffusion_checkpoint import KINDS, DrawCheckpoint, Parts
from export.diffusion_graphs import DrawShape, draw_graphs
from export.diffusion_repository import DRAW_DEMO
from export.onnx_graph import Graph, export_graph, graphs
from export.repository import DEMO, fresh_text, out_layout, set_key
from proteus.deployment import Deployment
from proteus.engines import EngineStage
from proteus.manifest import DRAW_FORMAT, DRAW_MANIFEST, FORMAT, MANIFEST

PIPELINE = KINDS["StableDiffusionPipeline"]
SD_KEYS = {
    "min_side_px": "512",
    "max_side_px": "768",
    "max_pixels": "393_216",
    "side_multiple_px": "64",
    "default_size": '"512x512"',
    "max_rows": "16",
}


def llava(folder: Path, stage: EngineStage) -> Deployment:
    """CLIP-L/14 at 336 px and the two layers of its connector; the language model behind it is a stub of its width."""
    layers = 24 if stage == "vision_encoder" else 2  # the connector's graph has none of them
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(
            image_size=336,
            patch_size=14,
            hidden_size=1024,
            intermediate_size=4096,
            num_hidden_layers=layers,
            num_attention_heads=16,
            projection_dim=768,
        ),
        text_config=LlamaConfig(vocab_size=64, num_hidden_layers=1, intermediate_size=64, num_attention_heads=32),
        image_token_index=32,
    )
    layout = out_layout(DEMO, folder)
    _write(layout.root / layout.deployment, fresh_text(layout))
    config.save_pretrained(folder / layout.checkpoint)
    side = config.vision_config.image_size
    crop = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
    _write(folder / layout.checkpoint / "preprocessor_config.json", json.dumps(crop))
    model = LlavaForConditionalGeneration(config).eval().requires_grad_(False)
    repository = folder / layout.repository
    _export(stage, graphs(model), repository)
    manifest = {
        "format": FORMAT,
        "revision": "",
        "image_size": side,
        "visual_tokens": (side // config.vision_config.patch_size) ** 2,
        "hidden_size": config.text_config.hidden_size,
        "vocab_size": config.text_config.vocab_size,
        "context_tokens": config.text_config.max_position_embeddings,
    }
    _write(repository / MANIFEST, json.dumps(manifest))
    return Deployment.load(layout.root / layout.deployment)


def stable_diffusion(folder: Path, stage: EngineStage) -> Deployment:
    """CLIP-L, a UNet of 860 M weights, and its decoder at 512 px; what `stage` does not need has no weights."""
    layout = out_layout(DRAW_DEMO, folder)
    text = set_key(fresh_text(layout), "sizes", '["512x512"]')
    before, table, behind = text.partition("[stages.vae_decoder]")
    text = before + table + set_key(behind, "max_batch", "4")
    text = set_key(text, "workspace_bytes", "17_179_869_184")  # of decoded pictures
    head, mark, tables = text.partition("\n[draw]\n")
    for key, value in SD_KEYS.items():
        tables = set_key(tables, key, value)
    _write(layout.root / layout.deployment, head + mark + tables)
    parts = _parts(stage)
    shape = DrawShape.of(parts)
    repository = folder / layout.repository
    _export(stage, draw_graphs(parts, shape), repository)
    manifest = {
        "format": DRAW_FORMAT,
        "revision": "",
        "family": "unet",
        "text_inputs": [
            {"tensor": text.tensor, "folder": text.tokenizer, "tokens": tokens, "pad_id": 0}
            for text, tokens in zip(PIPELINE.texts, shape.input_tokens, strict=True)
        ],
        "text_tokens": shape.text_tokens,
        "text_width": shape.text_width,
        "pooled_width": 0,
        "latent_channels": shape.latent_channels,
        "vae_factor": shape.vae_factor,
        "size_multiple": shape.size_multiple,
        "prediction": "epsilon",
        "scheduler": {},
        "embedded_guidance": False,
        "preview": [],
    }
    _write(repository / DRAW_MANIFEST, json.dumps(manifest))
    return Deployment.load(layout.root / layout.deployment)


MAKERS: Mapping[str, Callable[[Path, EngineStage], Deployment]] = {"llava-1.5": llava, "sd-1.5": stable_diffusion}


def _parts(stage: EngineStage) -> Parts:
    text = CLIPTextConfig(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12)
    with torch.device("cpu" if stage == "denoiser" else "meta"):
        unet = UNet2DConditionModel(sample_size=64, cross_attention_dim=768, attention_head_dim=8)
    with torch.device("cpu" if stage == "vae_decoder" else "meta"):
        vae = AutoencoderKL(
            block_out_channels=(128, 256, 512, 512),
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            layers_per_block=2,
            sample_size=512,
        )
    checkpoint = DrawCheckpoint(
        folder=Path(),
        kind=PIPELINE,
        texts=PIPELINE.texts,
        left_out=(),
        prediction="epsilon",
        scheduler={},
        weight_files=(),
    )
    return Parts(
        checkpoint=checkpoint,
        encoders=(CLIPTextModel(text).eval().requires_grad_(False),),
        tokenizers=(SimpleNamespace(model_max_length=text.max_position_embeddings),),
        denoiser=unet.eval().requires_grad_(False),
        vae=vae.eval().requires_grad_(False),
    )


def _export(stage: EngineStage, made: Iterator[Graph], repository: Path) -> None:
    for graph in made:
        if graph.name == stage:
            export_graph(graph, repository)
            return


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    MAKERS[sys.argv[1]](Path(sys.argv[3]), cast(EngineStage, sys.argv[2]))
