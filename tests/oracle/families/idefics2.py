"""Idefics2 as transformers counts it, with and without quarters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from proteus.families.table import load_family
from tests.families.published_tiles import IDEFICS2
from tests.oracle.case import Counts, Images, Judge, Medium, Refusal, around
from tests.oracle.tile_case import (
    TileCase,
    all_patches,
    model_without_weights,
    operations,
    tiles,
    with_keys,
    with_pictures,
)
from tests.oracle.weightless import picture


@dataclass(frozen=True, slots=True)
class Idefics2Case(TileCase):
    def judge(self, folder: Path) -> Judge:
        """The image processor on pictures without pixels; the text is the same for every one, so it is asked once."""
        processor, family = self.processor(folder), load_family(folder)
        once = self.full_judge(folder)
        assert once is not None
        counts = once(Images(((20, 20),)))

        def ask(medium: Medium) -> Counts | Refusal:
            assert isinstance(medium, Images)
            inputs = processor.image_processor([[picture(width, height)] for width, height in medium.sizes])
            return self.other_shape(family, medium, inputs) or counts

        return ask

    def flops(self, folder: Path, medium: Medium) -> int:
        model, pixels = model_without_weights(folder).model, tiles(load_family(folder), medium)
        mask = all_patches(pixels, model.config.vision_config.patch_size)

        def run() -> None:
            rows = model.vision_model(pixel_values=pixels, patch_attention_mask=mask).last_hidden_state
            model.connector(rows, attention_mask=mask.view(pixels.shape[0], -1))

        return operations(run)


SHALLOW = with_keys(IDEFICS2, vision_config={"num_hidden_layers": 2}, text_config={"num_hidden_layers": 1})
SPLIT = Idefics2Case(
    name="idefics2-split",
    family="idefics2",
    files=SHALLOW,
    special_tokens=("<fake_token_around_image>", "<image>", "<end_of_utterance>"),
    marks=around((1, 378, 756, 980, 1960)),
    full_every=50,
)
CASES = (
    SPLIT,
    replace(SPLIT, name="idefics2", files=with_pictures(SHALLOW, do_image_splitting=False)),
)
