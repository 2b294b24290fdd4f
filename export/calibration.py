"""Inputs of each GPU stage as requests bring them, and extreme ones, to see in which precision it stays right.

Pictures are of the drawn world, through the checkpoint's own preprocessing; prompts go through its tokenizers; latents
are caught in the sampling loop. Features and text states are what the exported float32 graphs make of those.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from PIL import Image

from export.diffusion_graphs import CACHE_KEY_BYTES
from export.world.draw import draw
from export.world.scene import scene
from export.world.wish import drawing, full_wish, prompt
from proteus.cost.draw import LatentGrid
from proteus.deployment import Deployment
from proteus.door.draw_text import PromptTokenizer
from proteus.errors import PromptTooLong
from proteus.generation.guidance import branches, combine
from proteus.generation.noise import INITIAL, noise
from proteus.generation.samplers import Sampler
from proteus.generation.schedule import NoiseSchedule
from proteus.manifest import DrawManifest
from proteus.onnx_session import open_session
from proteus.preprocess.picture import Preprocess

PICTURES, PROMPTS, DRAWN = 6, 3, 2
STEPS = 8
DENOISER = Path("denoiser/1/denoiser.onnx")
_EXTREME_SIDE_PX = 96
_LONG_TEXT = 150 * "Zebras & 37 naïve circles! "

Sample = Mapping[str, NDArray[np.generic]]
Floats = NDArray[np.float32]


def samples_of(deployment: Deployment, stage: str) -> list[Sample]:
    """Inputs of a stage's ONNX file, by tensor name. The repository must hold the exported float32 graphs."""
    return list(_SAMPLES[stage](deployment))


def _vision_encoder(deployment: Deployment) -> Iterator[Sample]:
    preprocess = Preprocess.from_deployment(deployment)
    rng = np.random.default_rng(0)
    side = (_EXTREME_SIDE_PX, _EXTREME_SIDE_PX, 3)
    real = [np.asarray(draw(scene("train", seed))) for seed in range(PICTURES)]
    extreme = [np.zeros(side, np.uint8), np.full(side, 255, np.uint8), rng.integers(0, 256, side, np.uint8)]
    pixels = [preprocess(_png(picture)) for picture in (*real, *extreme)]
    yield {"pixel_values": np.stack(pixels[:PICTURES])}
    yield from ({"pixel_values": picture[None]} for picture in pixels[PICTURES:])


def _png(picture: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


def _connector(deployment: Deployment) -> Iterator[Sample]:
    encoder = _session(deployment, Path("vision_encoder/1/model.onnx"))
    for sample in _vision_encoder(deployment):
        yield {"image_features": encoder.run(["image_features"], dict(sample))[0]}


def _text_encoder(deployment: Deployment) -> Iterator[Sample]:
    manifest = DrawManifest.load(deployment.repository_path)
    tokenizer = PromptTokenizer.from_checkpoint(deployment.drawing.checkpoint_path, manifest.text_inputs)
    texts = [*_prompts(tokenizer), "", _fitted(tokenizer, _LONG_TEXT)]
    yield _text_feed(tokenizer, texts)
    yield from (_text_feed(tokenizer, [text]) for text in texts[-2:])


def _prompts(tokenizer: PromptTokenizer) -> list[str]:
    texts = [prompt(full_wish(drawing("train", seed)), random.Random(seed)) for seed in range(PROMPTS)]
    return [_fitted(tokenizer, text) for text in texts]


def _fitted(tokenizer: PromptTokenizer, text: str) -> str:
    """As many words of it, from the first on, as every tokenizer has room for; a twentieth may be missing."""
    words = text.split(" ")
    while True:
        try:
            tokenizer.encode(" ".join(words), "prompt")
        except PromptTooLong:
            words = words[: len(words) - 1 - len(words) // 20]
        else:
            return " ".join(words)


def _text_feed(tokenizer: PromptTokenizer, texts: list[str]) -> dict[str, NDArray[np.generic]]:
    encoded = [tokenizer.encode(text, "prompt").arrays for text in texts]
    feed: dict[str, NDArray[np.generic]] = {name: np.stack([ids[name] for ids in encoded]) for name in encoded[0]}
    return {**feed, "cache_key": np.zeros((len(texts), CACHE_KEY_BYTES), np.uint8)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    calls: tuple[Sample, ...]  # of the denoiser: at the first evaluation, one in the middle, the last
    latent: Floats  # (Z, h, w)


def _drawn(deployment: Deployment) -> Iterator[_Drawn]:
    """Pictures of the default size, guidance and sampler, in STEPS steps."""
    manifest, limits = DrawManifest.load(deployment.repository_path), deployment.drawing.limits
    denoiser = _session(deployment, DENOISER)
    width, height = (int(side) // manifest.vae_factor for side in limits.default_size.split("x"))
    patch = LatentGrid.from_manifest(manifest).patch
    grid = NoiseSchedule.of(manifest).grid(STEPS, limits.default_sampler, height * width // patch**2)
    guidance = limits.default_guidance
    num_branches = branches(guidance, manifest.embedded_guidance)
    for index, condition in enumerate(_conditions(deployment, manifest, num_branches)):
        start = noise(index, 0, INITIAL, (manifest.latent_channels, height, width))
        trajectory = Sampler(grid).start(start)
        wanted = {0, trajectory.evaluations_left // 2, trajectory.evaluations_left - 1}
        calls: list[Sample] = []
        for evaluation in range(trajectory.evaluations_left):
            feed = {
                **condition,
                "latents": np.repeat(trajectory.model_input()[None].astype(np.float32), num_branches, axis=0),
                "timestep": np.full(num_branches, trajectory.timestep, np.float32),
            }
            if manifest.embedded_guidance:
                feed["guidance"] = np.full(num_branches, guidance, np.float32)
            if evaluation in wanted:
                calls.append(feed)
            rows = denoiser.run(["prediction"], feed)[0]
            trajectory.advance(rows[0] if num_branches == 1 else combine(rows[0], rows[1], guidance))
        yield _Drawn(calls=tuple(calls), latent=trajectory.latent.astype(np.float32))


def _conditions(deployment: Deployment, manifest: DrawManifest, num_branches: int) -> Iterator[dict[str, Floats]]:
    """Text states, and pooled text where the denoiser reads it: a row for the prompt, one for no prompt."""
    tokenizer = PromptTokenizer.from_checkpoint(deployment.drawing.checkpoint_path, manifest.text_inputs)
    encoder = _session(deployment, Path("text_encoder/1/model.onnx"))
    names = ["text_states", "pooled"] if manifest.pooled_width else ["text_states"]
    for text in _prompts(tokenizer)[:DRAWN]:
        feed = _text_feed(tokenizer, [text, ""][:num_branches])
        yield dict(zip(names, encoder.run(names, feed), strict=True))


def _denoiser(deployment: Deployment) -> Iterator[Sample]:
    for picture in _drawn(deployment):
        yield from picture.calls


def _vae_decoder(deployment: Deployment) -> Iterator[Sample]:
    """Latents at the end of the loop; then none at all, and noise, as of a picture whose loop went wrong."""
    latents = [picture.latent[None] for picture in _drawn(deployment)]
    yield from ({"latents": latent} for latent in latents)
    yield {"latents": np.zeros_like(latents[0])}
    yield {"latents": noise(DRAWN, 0, INITIAL, latents[0].shape)}


def _session(deployment: Deployment, graph: Path) -> ort.InferenceSession:
    return open_session(deployment.repository_path / graph, deployment.cores)


_SAMPLES: Mapping[str, Callable[[Deployment], Iterator[Sample]]] = {
    "vision_encoder": _vision_encoder,
    "connector": _connector,
    "text_encoder": _text_encoder,
    "denoiser": _denoiser,
    "vae_decoder": _vae_decoder,
}
