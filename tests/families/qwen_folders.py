"""Checkpoint folders made of published config files, with changes."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from proteus.families.family import Family, PlanRefused
from proteus.families.table import load_family
from tests.families import published_qwen, published_tiles

PUBLISHED = published_qwen.PUBLISHED | published_tiles.PUBLISHED
ABSENT = object()


def write(folder: Path, name: str, changes: dict[str, Any] | None = None) -> Path:
    """The files of `name`; a change is "file.json:key.key" -> value, ABSENT takes the key (or the file) away."""
    files = copy.deepcopy(PUBLISHED[name])
    for path, value in (changes or {}).items():
        file, _, keys = path.partition(":")
        if not keys:
            files.pop(file, None)
            continue
        table = files.setdefault(file, {})
        *parents, last = keys.split(".")
        for parent in parents:
            table = table.setdefault(parent, {})
        table.pop(last, None)
        if value is not ABSENT:
            table[last] = value
    for file, document in files.items():
        (folder / file).write_text(json.dumps(document), encoding="utf-8")
    return folder


def family_of(folder: Path, name: str, changes: dict[str, Any] | None = None) -> Family:
    return load_family(write(folder, name, changes))


def picture_tokens(family: Family, height_px: int, width_px: int) -> tuple[int, int] | None:
    """(visual, visual and wrapper) tokens; None where the plan refuses."""
    try:
        plan = family.plan_image(width_px, height_px)
    except PlanRefused:
        return None
    return plan.visual_tokens, plan.prompt_tokens
