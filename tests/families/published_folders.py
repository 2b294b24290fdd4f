"""Folders of published config files with some keys changed, and families read from them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proteus.families.family import Family
from proteus.families.table import load_family

ABSENT = object()


def load_changed(
    folder: Path, files: Mapping[str, Mapping[str, Any]], changes: Mapping[str, object] | None = None
) -> Family:
    """Write `files` with `changes` ("config.json: vision_config.patch_size" to a value, or to ABSENT) and load them.

    A file's name alone as the key takes the file away or writes it.
    """
    documents: dict[str, Any] = copy.deepcopy(dict(files))
    for place, value in (changes or {}).items():
        file, _, path = place.partition(":")
        put(documents, [file, *path.strip().split(".")] if path else [file], value)
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document), encoding="utf-8")
    return load_family(folder)


def put(document: dict[str, Any], path: list[str], value: object) -> None:
    *parents, last = path
    for parent in parents:
        document = document.setdefault(parent, {})
    if value is ABSENT:
        document.pop(last, None)
    else:
        document[last] = value


def picture_tokens(family: Family, sizes: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """Visual tokens for each (height, width) of `sizes`, to compare with them."""
    return {(height, width): family.plan_image(width, height).visual_tokens for height, width in sizes}
