"""Mllama as transformers counts it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from proteus.families.table import load_family
from tests.families.published_tiles import LLAMA32_VISION
from tests.oracle.case import Counts, Judge, Medium
from tests.oracle.tile_case import (
    TileCase,
    model_without_weights,
    operations,
    steps,
    tiles,
    with_keys,
    with_pictures,
)
from tests.oracle.weightless import picture

SIDE_PATCHES, CLASS_TOKENS, ROWS_MULTIPLE = 40, 1, 8


@dataclass(frozen=True, slots=True)
class MllamaCase(TileCase):
    def judge(self, folder: Path) -> Judge:
        """From end to end: its prompts are short."""
        return self.asking(self.processor(folder), picture)

    def counts(self, processor: Any, answer: Any) -> Counts:
        """The first token of a prompt is no picture's; rows are those of the tiles that the prompt may look at."""
        ids = [token for token in answer["input_ids"][0] if token != processor.tokenizer.bos_token_id]
        tiles_seen = int(answer["cross_attention_mask"][0][-1].sum())
        visual = ids.count(processor.image_token_id)
        return Counts(visual, len(ids), tiles_seen * (SIDE_PATCHES**2 + CLASS_TOKENS))

    def flops(self, folder: Path, medium: Medium) -> int:
        """But the outer product of rows that makes the mask."""
        import torch

        model, pixels = model_without_weights(folder).model, tiles(load_family(folder), medium)[None, None]
        num_tiles = pixels.shape[2]
        ratio = torch.ones(1, 1, dtype=torch.long, device="meta")
        used = torch.ones(1, 1, num_tiles, dtype=torch.long, device="meta")

        def run() -> None:
            seen = model.vision_model(pixel_values=pixels, aspect_ratio_ids=ratio, aspect_ratio_mask=used)
            model.multi_modal_projector(seen.last_hidden_state)

        rows = SIDE_PATCHES**2 + CLASS_TOKENS
        padded = num_tiles * (rows + -rows % ROWS_MULTIPLE)
        return operations(run) - 2 * padded * padded


FEW_LAYERS = {
    "vision_config": {"num_hidden_layers": 2, "num_global_layers": 1, "intermediate_layers_indices": [0, 0, 1, 1, 1]},
    "text_config": {"num_hidden_layers": 1},
}
PUBLISHED = MllamaCase(
    name="mllama",
    family="mllama",
    files=with_keys(LLAMA32_VISION, **FEW_LAYERS),
    special_tokens=("<|image|>", "<|python_tag|>"),
    placeholder="<|image|>",
    marks=steps(560, 5),
    full_every=50,
)
SIX_TILES = {
    "max_num_tiles": 6,
    "supported_aspect_ratios": [[one, other] for one in range(1, 7) for other in range(1, 7) if one * other <= 6],
}
CASES = (
    PUBLISHED,
    replace(
        PUBLISHED,
        name="mllama-6-tiles",
        flops_sizes=((640, 480),),
        files=with_pictures(
            with_keys(
                LLAMA32_VISION,
                vision_config={**FEW_LAYERS["vision_config"], **SIX_TILES},
                text_config=FEW_LAYERS["text_config"],
            ),
            max_image_tiles=6,
        ),
    ),
)
