"""Every published checkpoint whose config files the tests of families keep, read once."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from proteus.families.family import Family
from tests.families import published_llava, published_qwen, published_tiles
from tests.families.published_folders import load_changed

PUBLISHED = published_llava.PUBLISHED | published_qwen.PUBLISHED | published_tiles.PUBLISHED


@functools.cache
def family_of(name: str) -> Family:
    with tempfile.TemporaryDirectory() as folder:
        return load_changed(Path(folder), PUBLISHED[name])


def names_that_read(modality: str) -> list[str]:
    """Checkpoints whose family reads it."""
    return [name for name in PUBLISHED if modality in family_of(name).modalities]
