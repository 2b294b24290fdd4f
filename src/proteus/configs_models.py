"""Every model of a deployment as Triton is to know it, whatever it runs on: tensors, batches, what warms it.

`configs` writes a config.pbtxt from each for hosts without GPUs, `configs_gpu` one for hosts with GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from proteus import pbtxt
from proteus.contract import (
    CHAT,
    CONNECTOR,
    CONNECTOR_NS,
    ENCODER_NS,
    IMAGE_FEATURES,
    IMAGE_PREPROCESS,
    IMAGE_TOKENS,
    LLM,
    PIXEL_VALUES,
    VISION_ENCODER,
    ModelSpec,
    Shapes,
    TensorSpec,
)
from proteus.contract_draw import (
    DRAW,
    LATENTS,
    VAE_DECODER,
    DrawShapes,
    denoiser_of,
    text_encoder_of,
)
from proteus.deployment import Deployment, Stage
from proteus.limits_published import published, published_of_draw
from proteus.manifest import DrawManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model, but for the hardware."""

    spec: ModelSpec
    shapes: pbtxt.Resolving
    max_batch: int = 0

    @property
    def head(self) -> str:
        return pbtxt.head(self.spec, self.shapes, self.max_batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Door(Model):
    """What clients call; its parameters are what it publishes."""

    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine(Model):
    """A process with a loop of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocess(Model):
    """Python, in batches."""

    stage: Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble(Model):
    """Other models, one after the other."""

    revision: str  # of the checkpoint, for servers that ask this one for visual tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph(Model):
    """An exported graph, in batches."""

    stage: Stage
    reads: Mapping[TensorSpec, Sequence[int]]  # one picture or prompt, to warm it
    clock: TensorSpec | None = None  # output that our own backends fill with times; the others leave the graph's zeros
    cached: bool = False  # by Triton's response cache


def reading_models(deployment: Deployment, shapes: Shapes, revision: str) -> Iterator[Model]:
    """Of the checkpoint that reads."""
    stages = deployment.stages
    encoder, connector, preprocess = stages.vision_encoder, stages.connector, stages.image_preprocess
    yield Door(spec=CHAT, shapes=shapes, parameters=published(deployment))
    yield Engine(spec=LLM, shapes=shapes)
    least = min(stage.max_batch for stage in (preprocess, encoder, connector))
    yield Ensemble(spec=IMAGE_TOKENS, shapes=shapes, max_batch=least, revision=revision)
    yield Preprocess(spec=IMAGE_PREPROCESS, shapes=shapes, max_batch=preprocess.max_batch, stage=preprocess)
    timed = ((VISION_ENCODER, encoder, PIXEL_VALUES, ENCODER_NS), (CONNECTOR, connector, IMAGE_FEATURES, CONNECTOR_NS))
    for spec, stage, tensor, clock in timed:
        reads = {tensor: shapes.resolve(tensor.dims)}
        yield Graph(spec=spec, shapes=shapes, max_batch=stage.max_batch, stage=stage, reads=reads, clock=clock)


def drawing_models(deployment: Deployment, manifest: DrawManifest) -> Iterator[Model]:
    """Of the checkpoint that draws."""
    drawing = deployment.drawing
    encoder, decoder = drawing.text_encoder, drawing.vae_decoder
    shapes, pooled = draw_shapes(manifest), manifest.pooled_width > 0
    text_encoder = text_encoder_of(shapes.input_tokens.keys(), pooled=pooled)
    width_px, height_px = drawing.limits.default_px
    default = (manifest.latent_channels, height_px // manifest.vae_factor, width_px // manifest.vae_factor)
    yield Door(spec=DRAW, shapes=shapes, parameters=published_of_draw(drawing.limits))
    yield Graph(
        spec=text_encoder,
        shapes=shapes,
        max_batch=encoder.max_batch,
        stage=encoder,
        reads={spec: shapes.resolve(spec.dims) for spec in text_encoder.inputs},
        cached=drawing.response_cache,
    )
    yield Engine(spec=denoiser_of(pooled=pooled), shapes=shapes)
    yield Graph(
        spec=VAE_DECODER,
        shapes=shapes,
        max_batch=decoder.max_batch,
        stage=decoder,
        reads={LATENTS: default},
    )


def draw_shapes(manifest: DrawManifest) -> DrawShapes:
    """The numbers behind the contract's symbols, of the checkpoint that draws."""
    return DrawShapes(
        input_tokens={text_input.tensor: text_input.tokens for text_input in manifest.text_inputs},
        text_tokens=manifest.text_tokens,
        text_width=manifest.text_width,
        pooled_width=manifest.pooled_width,
        latent_channels=manifest.latent_channels,
    )
