"""What the models that draw are asked."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterator

import numpy as np

from export.world.wish import drawing, full_wish, prompt
from perf.input_data import Load, Tensors, Value, tensors
from proteus.configs_models import draw_shapes
from proteus.contract import CACHE_KEY
from proteus.contract_draw import (
    DRAW,
    LATENTS,
    POOLED,
    TEXT_STATES,
    VAE_DECODER,
    DrawShapes,
    denoiser_of,
    text_encoder_of,
)
from proteus.deployment import Drawing
from proteus.door.draw_text import PromptTokenizer
from proteus.limits import DrawLimits
from proteus.manifest import DrawManifest

NUM_PROMPTS = 24
Size = tuple[int, int]  # width and height in px


def loads(drawn: Drawing, manifest: DrawManifest, salt: str) -> Iterator[Load]:
    """Of every model, the default size first and then the largest square."""
    shapes, sizes = draw_shapes(manifest), _sizes(drawn.limits)
    prompts = [_prompt(number) for number in range(NUM_PROMPTS)]
    for size in sizes:
        yield _draw(drawn.limits, size, prompts, salt)
    yield _text_encoder(drawn, manifest, prompts, salt)
    for size in sizes:
        yield _denoiser(drawn.limits, manifest, shapes, size)
    for size in sizes:
        yield _vae_decoder(manifest, size)


def _draw(limits: DrawLimits, size: Size, prompts: list[str], salt: str) -> Load:
    def request(number: int) -> Tensors:
        document = {
            "prompt": prompts[number % NUM_PROMPTS],
            "size": _named(size),
            "steps": limits.default_steps,
            "seed": number,
            "cache_scope": f"{salt}-{number}",
        }
        return tensors(DRAW, {"request": json.dumps(document)})

    return Load(spec=DRAW, bucket=_named(size), request=request, cached=True)


def _text_encoder(drawn: Drawing, manifest: DrawManifest, prompts: list[str], salt: str) -> Load:
    tokenizer = PromptTokenizer.from_checkpoint(drawn.checkpoint_path, manifest.text_inputs)
    spec = text_encoder_of([one.tensor for one in manifest.text_inputs], pooled=manifest.pooled_width > 0)

    def request(number: int) -> Tensors:
        ids = tokenizer.encode(prompts[number % NUM_PROMPTS], "prompt").arrays
        return tensors(spec, {**ids, CACHE_KEY.name: hashlib.sha256(f"{salt}-{number}".encode()).digest()})

    return Load(spec=spec, bucket=f"{manifest.text_tokens} tokens", request=request, cached=True)


def _denoiser(limits: DrawLimits, manifest: DrawManifest, shapes: DrawShapes, size: Size) -> Load:
    """A whole picture of each request, straight to the loop: the answer comes back, no mailbox is filled."""
    spec = denoiser_of(pooled=manifest.pooled_width > 0)
    two_branches = limits.default_guidance > 1 and not manifest.embedded_guidance

    def request(number: int) -> Tensors:
        rng = np.random.default_rng(number)
        settings = {
            "width_px": size[0],
            "height_px": size[1],
            "steps": limits.default_steps,
            "guidance": limits.default_guidance,
            "sampler": limits.default_sampler,
            "seed": number,
        }
        values: dict[str, Value] = {"settings": json.dumps(settings).encode()}
        for states, pooled in (("text_states", "pooled"), ("negative_states", "negative_pooled"))[: 1 + two_branches]:
            values[states] = rng.standard_normal(shapes.resolve(TEXT_STATES.dims), dtype=np.float32)
            if manifest.pooled_width:
                values[pooled] = rng.standard_normal(shapes.resolve(POOLED.dims), dtype=np.float32)
        return tensors(spec, values)

    return Load(spec=spec, bucket=_named(size), request=request, cached=False)


def _vae_decoder(manifest: DrawManifest, size: Size) -> Load:
    width, height = (side_px // manifest.vae_factor for side_px in size)

    def request(number: int) -> Tensors:
        latents = np.random.default_rng(number).standard_normal(
            (manifest.latent_channels, height, width), dtype=np.float32
        )
        return tensors(VAE_DECODER, {LATENTS.name: latents})

    return Load(spec=VAE_DECODER, bucket=_named(size), request=request, cached=False)


def _sizes(limits: DrawLimits) -> list[Size]:
    multiple_px = limits.side_multiple_px
    side_px = min(limits.max_side_px, math.isqrt(limits.max_pixels)) // multiple_px * multiple_px
    largest = [(side_px, side_px)] if side_px >= limits.min_side_px else []
    return list(dict.fromkeys([limits.default_px, *largest]))


def _named(size: Size) -> str:
    return f"{size[0]}x{size[1]}"


def _prompt(number: int) -> str:
    return prompt(full_wish(drawing("heldout", number)), random.Random(number))
