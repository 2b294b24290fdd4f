"""Families read from the published files of `published_qwen` and `published_tiles`, with changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from proteus.families.family import Family, PlanRefused
from tests.families import published_qwen, published_tiles
from tests.families.published_folders import ABSENT, load_changed

__all__ = ["ABSENT", "family_of", "picture_tokens"]
PUBLISHED = published_qwen.PUBLISHED | published_tiles.PUBLISHED


def family_of(folder: Path, name: str, changes: Mapping[str, object] | None = None) -> Family:
    return load_changed(folder, PUBLISHED[name], changes)


def picture_tokens(family: Family, height_px: int, width_px: int) -> tuple[int, int] | None:
    """(visual, visual and wrapper) tokens; None where the plan refuses."""
    try:
        plan = family.plan_image(width_px, height_px)
    except PlanRefused:
        return None
    return plan.visual_tokens, plan.prompt_tokens
