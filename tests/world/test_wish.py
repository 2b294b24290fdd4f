"""Wishes and prompts: deterministic, honest about what is held out, saying all that was wished for."""

from __future__ import annotations

import hashlib
import random

import pytest

from export.world.scene import PLACES, is_heldout_shape
from export.world.wish import drawing, full_wish, prompt, vague_wish

SEEDS = range(400)


def test_a_world_version_names_exactly_these_drawings_and_prompts() -> None:
    """A change to either must come with a new WORLD_VERSION, or old scores stop meaning anything."""
    text = ""
    for split in ("train", "heldout"):
        for seed in range(50):
            scene, words = drawing(split, seed), random.Random(seed)
            text += repr(scene) + prompt(full_wish(scene), words) + prompt(vague_wish(scene, words), words)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "ae3edf84ef2ba230"


@pytest.mark.parametrize(("split", "heldout"), [("train", False), ("heldout", True)])
def test_every_shape_is_held_out_or_none_is(split: str, heldout: bool) -> None:
    shapes = [shape for seed in SEEDS for shape in drawing(split, seed).shapes]
    assert {is_heldout_shape(shape.shape, shape.colour, shape.cell) for shape in shapes} == {heldout}


def test_a_full_prompt_says_all_of_the_scene() -> None:
    for seed in SEEDS:
        scene = drawing("train", seed)
        said = prompt(full_wish(scene), random.Random(seed))
        assert scene.background in said
        for shape in scene.shapes:
            assert any(f"{shape.name} {word} the {PLACES[shape.cell]}" in said for word in ("at", "in"))


def test_a_vague_wish_asks_for_nothing_that_the_scene_has_not() -> None:
    for seed in SEEDS:
        scene = drawing("train", seed)
        wish = vague_wish(scene, random.Random(seed))
        assert wish.background in (None, scene.background)
        for thing, whole in zip(wish.things, full_wish(scene).things, strict=True):
            asked = (thing.shape, thing.colour, thing.cell)
            assert sum(part is None for part in asked) <= 1
            known = (whole.shape, whole.colour, whole.cell)
            assert all(part in (None, fact) for part, fact in zip(asked, known, strict=True))


@pytest.mark.parametrize("size", [(64, 64), (96, 64), (64, 96)])
def test_a_size_changes_the_picture_and_not_what_is_in_it(size: tuple[int, int]) -> None:
    width_px, height_px = size
    scene = drawing("train", 5, width_px=width_px, height_px=height_px)
    assert (scene.width_px, scene.height_px) == size
    assert full_wish(scene) == full_wish(drawing("train", 5))
