"""Mistral3: Pixtral's rule with four patches merged into one visual token before the connector.

Rule and sources in `pixtral`; sides are rounded up to cells of `merge` patches, so the tower sees whole cells only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from proteus.families import flops
from proteus.families.checkpoint import ConfigTable
from proteus.families.family import Family, MediaPlan, picture_bytes
from proteus.families.language_model import LanguageModel, read_language_model
from proteus.families.pixtral import read_longest_edge_px, read_tower, row_plan, token_grid, tower_flops
from proteus.families.vision_tower import VisionTower


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistral3(Family):
    """Checkpoints of `Mistral3ForConditionalGeneration`: Mistral Small 3.1 and its like."""

    name = "Mistral3"
    model_types = ("mistral3",)

    language: LanguageModel
    tower: VisionTower
    merge: int
    longest_edge_px: int

    @classmethod
    def from_checkpoint(cls, folder: Path, config: ConfigTable) -> Self:
        """Read the folder; raises UnsupportedCheckpoint, also where `text_config` is left out: its defaults are not
        those of the text model.
        """
        config.one_of("vision_feature_layer", (-1,), -1)
        text = config.table("text_config")
        text.one_of("model_type", ("mistral",))
        tower, merge = read_tower(config), config.positive("spatial_merge_size", 2)
        return cls(
            language=read_language_model(text, "mistral"),
            tower=tower,
            merge=merge,
            longest_edge_px=read_longest_edge_px(folder, tower.patch_px, merge=merge),
        )

    def plan_image(self, width_px: int, height_px: int, *, images_in_request: int = 1) -> MediaPlan:
        """Plan one picture; raises PlanRefused without area and where the shorter side would shrink to nothing."""
        cell_px = self.tower.patch_px * self.merge
        cols, rows = token_grid(width_px, height_px, longest_edge_px=self.longest_edge_px, cell_px=cell_px)
        tokens, width = rows * cols, self.tower.width
        connector = (
            flops.linear(tokens, width * self.merge**2, width)
            + flops.linear(tokens, width, self.language.hidden_size)
            + flops.linear(tokens, self.language.hidden_size, self.language.hidden_size)
        )
        return row_plan(
            self.language,
            cols,
            rows,
            merge=self.merge,
            encoder_flops=tower_flops(self.tower, tokens * self.merge**2) + connector,
            decode_bytes=picture_bytes(width_px, height_px),
        )
