"""Idefics3 and SmolVLM as transformers counts them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from proteus.families.table import load_family
from tests.families.published_tiles import IDEFICS3, SMOLVLM2_500M
from tests.oracle.case import Medium
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

NAMED_TILES = tuple(f"<row_{row}_col_{col}>" for row in range(1, 7) for col in range(1, 7))


@dataclass(frozen=True, slots=True)
class Idefics3Case(TileCase):
    def flops(self, folder: Path, medium: Medium) -> int:
        model, pixels = model_without_weights(folder).model, tiles(load_family(folder), medium)
        mask = all_patches(pixels, model.config.vision_config.patch_size)
        return operations(
            lambda: model.connector(
                model.vision_model(pixel_values=pixels, patch_attention_mask=mask).last_hidden_state
            )
        )


FEW_LAYERS = {"vision_config": {"num_hidden_layers": 2}, "text_config": {"num_hidden_layers": 1}}
PUBLISHED = Idefics3Case(
    name="idefics3",
    family="idefics3",
    files=with_keys(IDEFICS3, **FEW_LAYERS),
    special_tokens=(
        "<fake_token_around_image>",
        "<image>",
        "<end_of_utterance>",
        "<global-img>",
        "<video>",
        *NAMED_TILES,
    ),
    text_tokens=("\n\n",),
    marks=steps(364, 5),
    full_every=50,
)
UNEVEN = with_pictures(
    with_keys(IDEFICS3, **FEW_LAYERS), size={"longest_edge": 4200}, max_image_size={"longest_edge": 728}
)
UNEVEN["config.json"]["scale_factor"] = 13  # few tokens: they take most of the judge's time
UNEVEN["processor_config.json"]["image_seq_len"] = (728 // 14 // 13) ** 2
CASES = (
    PUBLISHED,
    # a longest side above the cap and no multiple of the tile, and a blank line of two tokens
    replace(PUBLISHED, name="idefics3-uneven", files=UNEVEN, text_tokens=(), marks=steps(728, 7), flops_sizes=()),
    replace(
        PUBLISHED,
        name="idefics3-no-tiles",
        files=with_pictures(with_keys(IDEFICS3, **FEW_LAYERS), do_image_splitting=False),
        flops_sizes=(),
    ),
    replace(PUBLISHED, name="smolvlm", files=with_keys(SMOLVLM2_500M, **FEW_LAYERS), marks=steps(512, 5)),
)
