"""Phi-4-multimodal as transformers counts it: pictures and audio."""

from __future__ import annotations

import random as random_module
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from proteus.families.table import load_family
from tests.families.published_tiles import PHI4
from tests.oracle.case import Audio, Counts, Images, Judge, Medium, Refusal, around
from tests.oracle.tile_case import (
    TileCase,
    all_patches,
    model_without_weights,
    operations,
    steps,
    tiles,
    with_keys,
    with_pictures,
)

TOKENS = {"image_token": "<|endoftext10|>", "audio_token": "<|endoftext11|>"}
RATE_HZ, WINDOW, HOP = 16_000, 400, 160
LONGEST_S = 100


class MasksInMemory:
    """torch for one module, whose masks of ones have memory whatever device is asked for: their sums are read."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.torch, name)

    def ones(self, *shape: Any, device: Any = None) -> Any:
        return self.torch.ones(*shape)


@dataclass(frozen=True, slots=True)
class Phi4Case(TileCase):
    def processor(self, folder: Path) -> Any:
        import torch
        from transformers.models.phi4_multimodal import image_processing_phi4_multimodal as module

        module.torch = MasksInMemory(torch)
        return TileCase.processor(self, folder)

    def judge(self, folder: Path) -> Judge:
        see, hear = TileCase.judge(self, folder), self._hearing(folder)
        return lambda medium: hear(medium) if isinstance(medium, Audio) else see(medium)

    def full_judge(self, folder: Path) -> Judge | None:
        see, hear = TileCase.full_judge(self, folder), self._hearing(folder)
        assert see is not None
        return lambda medium: hear(medium) if isinstance(medium, Audio) else see(medium)

    def _hearing(self, folder: Path) -> Judge:
        """The processor from end to end on silence."""
        import numpy as np

        processor = self.processor(folder)

        def ask(medium: Medium) -> Counts | Refusal:
            assert isinstance(medium, Audio)
            silence = np.zeros(medium.num_samples, dtype=np.float32)
            answer = processor(audio=[silence], text=TOKENS["audio_token"], audio_kwargs={"sampling_rate": RATE_HZ})
            ids = list(answer["input_ids"][0])
            return Counts(ids.count(processor.audio_token_id), len(ids))

        return ask

    def media(self, random: random_module.Random, count: int) -> Iterator[Medium]:
        """Audio every fourth time: lengths spread over their logarithm and around whole windows, hops and rows."""
        marks = (1, WINDOW, *(WINDOW + k * HOP for k in (1, 2, 7, 8, 15, 16, 4000)))
        pictures = TileCase.media(self, random, count)
        for index in range(count):
            if index % 4:
                yield next(pictures)
            elif index % 8:
                yield Audio(random.choice(around(marks)))
            else:
                yield Audio(round((LONGEST_S * RATE_HZ) ** random.random()))

    def flops_media(self) -> tuple[Medium, ...]:
        if not self.flops_sizes:
            return ()
        return (*TileCase.flops_media(self), *(Audio(round(s * RATE_HZ)) for s in (0.1, 5.3, 40, 95)))

    def flops(self, folder: Path, medium: Medium) -> int:
        """But the vision layer after the one whose output is used, and the pooling head."""
        import torch

        family = load_family(folder)
        parts = model_without_weights(folder, "AutoModelForCausalLM").model.embed_tokens_extend
        if isinstance(medium, Audio):
            mel = torch.empty(1, family.plan_audio(medium.num_samples).encoder_input.cols, 80, device="meta")
            heard = parts.audio_embed
            return operations(lambda: heard.down_proj_for_speech(heard.up_proj_for_speech(heard.encoder(mel, None))))
        assert isinstance(medium, Images)
        pixels, seen = tiles(family, medium), parts.image_embed
        rows = torch.empty(family.plan_image(*medium.sizes[0]).visual_tokens, seen.image_dim_out, device="meta")

        def run() -> None:
            seen.get_img_features(pixels, attention_mask=all_patches(pixels, 14))
            seen.img_projection_down(seen.img_projection_up(rows))

        tower = "Phi4MultimodalVisionModel"
        last = family.tower.layers - 1
        return operations(run, unused=(f"{tower}.encoder.layers.{last}", f"{tower}.head"))


SHALLOW = with_keys(PHI4, vision_config={"num_hidden_layers": 3}, audio_config={"num_blocks": 2})
SHALLOW["config.json"]["num_hidden_layers"] = 1
PUBLISHED = Phi4Case(
    name="phi4-multimodal",
    family="phi4_multimodal",
    files=SHALLOW,
    special_tokens=tuple(TOKENS.values()),
    named_tokens=TOKENS,
    placeholder=TOKENS["image_token"],
    marks=steps(448, 12),
    pixels="image_pixel_values",
    full_every=50,
)
CASES = (
    PUBLISHED,
    replace(PUBLISHED, name="phi4-multimodal-9-tiles", files=with_pictures(SHALLOW, dynamic_hd=9), flops_sizes=()),
)
