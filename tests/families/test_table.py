from __future__ import annotations

import json
from pathlib import Path

import pytest

from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.families.table import FAMILIES, KNOWN, load_family
from tests.families.published_folders import load_changed
from tests.families.published_llava import PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_checkpoint_is_read_by_its_family(tmp_path: Path, name: str) -> None:
    family = load_changed(tmp_path, PUBLISHED[name])
    assert PUBLISHED[name]["config.json"]["model_type"] in family.model_types
    assert family.plan_image(640, 480).visual_tokens > 0


def test_no_two_families_claim_a_checkpoint() -> None:
    assert sum(len(family.model_types) for family in KNOWN) == len(FAMILIES)


@pytest.mark.parametrize("model_type", ["blip", None, 7])
def test_an_unknown_family_is_refused_with_the_known_ones(tmp_path: Path, model_type: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(UnsupportedCheckpoint, match="known are .*llava.*paligemma"):
        load_family(tmp_path)
