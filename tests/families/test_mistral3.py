from __future__ import annotations

from pathlib import Path

import pytest

from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.families.family import EncoderInput
from tests.families.published_folders import ABSENT
from tests.families.qwen_folders import family_of, picture_tokens

NAME = "Mistral-Small-3.1-24B"


@pytest.mark.parametrize(
    ("height_px", "width_px", "tokens"),
    [
        (336, 336, (144, 156)),
        (480, 640, (414, 432)),
        (640, 480, (414, 437)),
        (1080, 1920, (1705, 1736)),
        (3024, 4032, (2310, 2352)),
        (1, 1, (1, 2)),
        (10, 1000, (36, 37)),
        (1000, 10, (36, 72)),
        (100, 7000, (55, 56)),
        (4000, 30, (55, 110)),
        (2, 500, (18, 19)),
        (1, 1541, None),
        (-3, 9, None),
    ],
)
def test_tokens_are_those_of_the_processor(
    tmp_path: Path, height_px: int, width_px: int, tokens: tuple[int, int] | None
) -> None:
    assert picture_tokens(family_of(tmp_path, NAME), height_px, width_px) == tokens


def test_four_patches_become_one_token(tmp_path: Path) -> None:
    plan = family_of(tmp_path, NAME).plan_image(640, 480)
    layers = 24 * (2 * 1656 * (4 * 1024**2 + 3 * 1024 * 4096) + 4 * 1656**2 * 1024)
    connector = 2 * 414 * (4096 * 1024 + 1024 * 5120 + 5120**2)
    assert plan.encoder_input == EncoderInput(kind="grid", count=1, rows=36, cols=46)
    assert plan.patches == 1656
    assert plan.encoder_flops == 2 * 1656 * 588 * 1024 + layers + connector
    assert plan.self_kv_bytes == 432 * 2 * 40 * 8 * 128 * 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"config.json: text_config": ABSENT}, "text_config.model_type = None; limit: known are mistral"),
        ({"config.json: vision_config": ABSENT}, "vision_config.model_type = None; limit: known are pixtral"),
        ({"config.json: spatial_merge_size": 1}, "spatial_merge_size = 2; limit: the model's 1"),
        ({"processor_config.json": ABSENT}, "patch_size = 16; limit: the model's 14"),
        ({"config.json: vision_feature_layer": [-1, -2]}, "vision_feature_layer = [-1, -2]"),
    ],
)
def test_settings_of_another_rule_are_refused_at_load(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        family_of(tmp_path, NAME, changes)
    assert words in str(caught.value)
