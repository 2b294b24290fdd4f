"""Every family we can plan for, by the `model_type` of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from proteus.families.checkpoint import UnsupportedCheckpoint, read_config
from proteus.families.family import Family

KNOWN: tuple[type[Family], ...] = ()
FAMILIES: Mapping[str, type[Family]] = {model_type: family for family in KNOWN for model_type in family.model_types}


def load_family(folder: Path) -> Family:
    """The family of a checkpoint folder; raises UnsupportedCheckpoint naming the known ones."""
    config = read_config(folder)
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        raise UnsupportedCheckpoint(
            f"{folder / 'config.json'}: model_type = {str(model_type)[:80]!r}",
            limit=f"known are {', '.join(sorted(FAMILIES))}",
            fix="add a family: docs/families.md tells how",
        )
    return FAMILIES[model_type].from_checkpoint(folder, config)
