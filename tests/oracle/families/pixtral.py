"""Pixtral as transformers counts it; Mistral3 shares the case.

The processor's own counting function takes a picture of 1 or 3 rows for one of 1 or 3 channels, so the functions below
it are asked, with the channels named.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tests.families.published_qwen import PUBLISHED
from tests.oracle.case import Counts, Hub, Images, Judge, Medium, Refusal, around, image_sizes

IMAGE_TOKEN, ROW_TOKENS = "[IMG]", ("[IMG_BREAK]", "[IMG_END]")


@dataclass(frozen=True, slots=True)
class RowCase(Hub):
    special_tokens: tuple[str, ...] = (IMAGE_TOKEN, *ROW_TOKENS)
    cell_px: int = 16
    longest_px: int = 1024

    def judge(self, folder: Path) -> Judge:
        """The image processor's target size and the processor's text for it."""
        import numpy as np
        from transformers.image_utils import ChannelDimension
        from transformers.models.pixtral.image_processing_pixtral import get_resize_output_image_size

        processor = load_processor(folder)
        longest = processor.image_processor.size["longest_edge"]
        cell = processor.patch_size * processor.spatial_merge_size

        def ask(medium: Medium) -> Counts | Refusal:
            assert isinstance(medium, Images)
            texts = []
            for index, (width, height) in enumerate(medium.sizes):
                blank = np.broadcast_to(np.uint8(0), (height, width, 3))
                size = get_resize_output_image_size(blank, (longest, longest), (cell, cell), ChannelDimension.LAST)
                if 0 in size:
                    return Refusal(f"picture {index} shrinks to {size}")
                texts.append(processor.replace_image_token({"image_sizes": [size]}, 0))
            visual = sum(text.count(IMAGE_TOKEN) for text in texts)
            return Counts(visual, visual + sum(text.count(token) for text in texts for token in ROW_TOKENS))

        return ask

    def full_judge(self, folder: Path) -> Judge:
        """The processor on blank pictures."""
        processor = load_processor(folder)

        def ask(medium: Medium) -> Counts | Refusal:
            ids = list(process(processor, medium)["input_ids"][0])
            return Counts(ids.count(processor.image_token_id), len(ids))

        return ask

    def media(self, random: random_module.Random, count: int) -> Iterator[Medium]:
        """Sides around cells, half cells and the longest side; one request in ten has two pictures."""
        cells = [self.cell_px * k // 2 for k in (*range(1, 16), 63, 64, 65)]
        marks = around([*cells, self.longest_px, self.longest_px - self.cell_px, 2 * self.longest_px])
        sizes = image_sizes(random, 2 * count, marks=marks)
        for _ in range(count):
            yield Images(tuple(islice(sizes, 1 + (random.random() < 0.1))))

    def flops_media(self) -> tuple[Medium, ...]:
        return tuple(Images((size,)) for size in ((64, 64), (300, 129), (29, 1), (31, 500), (2000, 70)))

    def flops(self, folder: Path, medium: Medium) -> int:
        """Tower and connector on the processor's own pixels; eager, so that torch counts attention."""
        import torch
        from torch.utils.flop_counter import FlopCounterMode
        from transformers import AutoConfig, AutoModelForImageTextToText

        config = AutoConfig.from_pretrained(folder)
        model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval()
        arrays = process(load_processor(folder), medium, return_tensors="pt")
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model.get_image_features(pixel_values=arrays["pixel_values"], image_sizes=arrays["image_sizes"])
        return counter.get_total_flops()


def load_processor(folder: Path) -> Any:
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(folder)


def process(processor: Any, medium: Medium, **options: Any) -> Any:
    """The processor's output for blank pictures."""
    from PIL import Image

    assert isinstance(medium, Images)
    blanks = [Image.new("RGB", size) for size in medium.sizes]
    return processor(text=IMAGE_TOKEN * len(blanks), images=blanks, **options)


def tiny(name: str) -> dict[str, Mapping[str, Any]]:
    """A published checkpoint's files with a tower and a language model small enough to run."""
    files: dict[str, Mapping[str, Any]] = dict(PUBLISHED[name])
    config = files["config.json"]
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision |= {"head_dim": 16}
    text = {"hidden_size": 40, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text |= {"num_key_value_heads": 1, "head_dim": 20, "vocab_size": 400}
    parts = {"vision_config": config["vision_config"] | vision, "text_config": config["text_config"] | text}
    return files | {"config.json": {**config, **parts}}


CASES = (RowCase(name="pixtral", family="pixtral", files=tiny("pixtral-12b")),)
