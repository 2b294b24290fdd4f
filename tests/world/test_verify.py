"""The rule verifier: right on every real picture, and not fooled by wrong, empty, blurred or noisy ones."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageFilter

from export.world.draw import draw
from export.world.scene import COLOURS, SHAPES, Scene
from export.world.verify import Verdict, look, verify
from export.world.wish import Wish, drawing, full_wish, vague_wish

SIZES = [(64, 64), (96, 64), (64, 96), (96, 96), (128, 128)]


def pixels(scene: Scene) -> np.ndarray:
    return np.asarray(draw(scene))


@pytest.mark.parametrize("split", ["train", "heldout"])
@pytest.mark.parametrize("size", SIZES)
def test_every_real_picture_is_all_that_was_wished_for(split: str, size: tuple[int, int]) -> None:
    for seed in range(60):
        scene = drawing(split, seed, width_px=size[0], height_px=size[1])
        assert verify(pixels(scene), full_wish(scene)).exact
        assert verify(pixels(scene), vague_wish(scene, random.Random(seed))).exact


def test_another_scenes_picture_is_right_as_often_as_chance_has_it() -> None:
    scenes = [drawing("train", seed) for seed in range(300)]
    others = [*scenes[1:], scenes[0]]
    verdicts = [verify(pixels(scene), full_wish(other)) for scene, other in zip(scenes, others, strict=True)]
    share = np.mean([right for verdict in verdicts for right in verdict.colours])
    assert share < 0.1  # a shape in the right place has one of eight colours, and most places are empty
    assert not any(verdict.exact for verdict in verdicts)
    assert 0.25 < np.mean([verdict.background for verdict in verdicts]) < 0.42


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("colour", list(COLOURS))
def test_one_shape_is_read_back(name: str, colour: str) -> None:
    scene = drawing("train", 1)
    scene = replace(scene, shapes=(replace(scene.shapes[0], shape=name, colour=colour),))
    (region,) = look(pixels(scene)).regions
    assert (region.shape, region.colour, region.cell) == (name, colour, scene.shapes[0].cell)


def test_a_wrong_colour_or_shape_is_told_apart_from_the_rest() -> None:
    scene = next(scene for seed in range(50) if len((scene := drawing("train", seed)).shapes) == 2)
    first, second = scene.shapes
    wish = full_wish(scene)
    other_colour = next(colour for colour in COLOURS if colour != first.colour)
    other_shape = next(shape for shape in SHAPES if shape != second.shape)
    painted = replace(scene, shapes=(replace(first, colour=other_colour), replace(second, shape=other_shape)))
    assert verify(pixels(painted), wish) == Verdict(
        background=True, count=True, colours=(False, True), shapes=(True, False)
    )
    assert verify(pixels(replace(scene, shapes=(first,))), wish).count is False


@pytest.mark.parametrize("kind", ["empty", "noise", "one colour"])
def test_what_shows_nothing_is_nothing(kind: str) -> None:
    rng = np.random.default_rng(0)
    picture = {
        "empty": np.full((64, 64, 3), 250, np.uint8),
        "noise": rng.integers(0, 256, (64, 64, 3), dtype=np.uint8),
        "one colour": np.full((64, 64, 3), COLOURS["red"], np.uint8),
    }[kind]
    scenes = [drawing("train", seed) for seed in range(30)]
    verdicts = [verify(picture, full_wish(scene)) for scene in scenes]
    assert not any(verdict.exact for verdict in verdicts)
    if kind == "empty":
        assert not any(any(verdict.shapes) or any(verdict.colours) for verdict in verdicts)


def test_a_picture_gets_worse_as_it_is_blurred() -> None:
    scenes = [drawing("train", seed) for seed in range(60)]
    rates = []
    for radius in (0, 2, 4, 8):
        blurred = [np.asarray(draw(scene).filter(ImageFilter.GaussianBlur(radius))) for scene in scenes]
        shapes = [verify(picture, full_wish(scene)).shapes for picture, scene in zip(blurred, scenes, strict=True)]
        rates.append(np.mean([right for verdict in shapes for right in verdict]))
    assert rates[0] == 1.0
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.5


def test_a_thing_without_a_place_may_be_anywhere() -> None:
    scene = drawing("train", 3)
    wish = full_wish(scene)
    anywhere = Wish(background=None, things=tuple(replace(thing, cell=None) for thing in wish.things))
    flipped = np.asarray(draw(scene).transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    assert verify(flipped, anywhere).exact
