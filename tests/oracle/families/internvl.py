"""InternVL as transformers counts it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from proteus.families.table import load_family
from tests.families.published_tiles import INTERNVL3
from tests.oracle.case import Counts, Images, Judge, Medium, Refusal
from tests.oracle.tile_case import TileCase, model_without_weights, operations, steps, tiles, with_keys, with_pictures

TOKENS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
WRAPPERS = 2


@dataclass(frozen=True, slots=True)
class InternVlCase(TileCase):
    def judge(self, folder: Path) -> Judge:
        """The processor's counting function, which is what a call gives; it counts the wrapper tokens too."""
        processor = self.processor(folder)

        def ask(medium: Medium) -> Counts | Refusal:
            assert isinstance(medium, Images)
            sizes = [(height, width) for width, height in medium.sizes]
            total = sum(processor._get_num_multimodal_tokens(image_sizes=sizes).num_image_tokens)
            return Counts(total - WRAPPERS * len(sizes), total)

        return ask

    def flops(self, folder: Path, medium: Medium) -> int:
        model, pixels = model_without_weights(folder), tiles(load_family(folder), medium)
        return operations(lambda: model.model.get_image_features(pixels))


SHALLOW = with_keys(INTERNVL3, vision_config={"num_hidden_layers": 2}, text_config={"num_hidden_layers": 1})
PUBLISHED = InternVlCase(
    name="internvl",
    family="internvl",
    files=SHALLOW,
    special_tokens=tuple(TOKENS.values()),
    named_tokens=TOKENS,
    placeholder=TOKENS["context_image_token"],
    marks=steps(448, 12),
    full_every=20,
)
CASES = (
    PUBLISHED,
    replace(
        PUBLISHED,
        name="internvl-3-to-7-tiles",
        files=with_pictures(SHALLOW, min_patches=3, max_patches=7),
        flops_sizes=(),
    ),
)
