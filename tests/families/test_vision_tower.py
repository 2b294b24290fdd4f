from __future__ import annotations

import pytest

from proteus.families.checkpoint import ConfigTable, UnsupportedCheckpoint
from proteus.families.vision_tower import VisionTower, read_square_px, read_vision_tower

TOWER = VisionTower(patch_px=14, width=8, feed_forward=32, layers=3)
LAYER = 2 * 5 * (4 * 8 * 8 + 2 * 8 * 32) + 4 * 5 * 5 * 8  # over five rows
EMBEDDING = 2 * 3 * 14 * 14 * 8  # of one patch


def test_a_rest_that_is_no_patch_is_dropped() -> None:
    assert TOWER.patches(41, 28) == 2 * 2


def test_layers_see_patches_and_class_tokens() -> None:
    assert TOWER.flops(4, class_tokens=1) == 4 * EMBEDDING + 3 * LAYER
    assert TOWER.flops(5) == 5 * EMBEDDING + 3 * LAYER
    assert TOWER.flops(5, layers=0) == 5 * EMBEDDING


@pytest.mark.parametrize("size", [16, [16, 16], {"height": 16, "width": 16}])
def test_a_side_is_read_from_every_way_to_write_a_square(size: object) -> None:
    table = ConfigTable("config.json", {"image_size": size, "patch_size": size})
    assert read_square_px(table, "image_size") == 16
    assert read_vision_tower(table, TOWER) == VisionTower(patch_px=16, width=8, feed_forward=32, layers=3)


def test_sides_that_differ_are_refused() -> None:
    with pytest.raises(UnsupportedCheckpoint, match="equal sides"):
        read_square_px(ConfigTable("config.json", {"size": [14, 16]}), "size")
