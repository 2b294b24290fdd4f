"""The drawn world: deterministic, true, and honest about what is held out."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
from PIL import Image

from export.world.draw import draw
from export.world.questions import TYPES, caption, question_of, questions, which_picture
from export.world.scene import (
    BACKGROUNDS,
    COLOURS,
    MAX_SIDE_PX,
    MIN_SIDE_PX,
    Scene,
    is_heldout_chart,
    is_heldout_number,
    is_heldout_shape,
    scene,
)

SEEDS = range(400)


def heldout_parts(scene_: Scene) -> int:
    shapes = sum(is_heldout_shape(shape.shape, shape.colour, shape.cell) for shape in scene_.shapes)
    number = scene_.number is not None and is_heldout_number(scene_.number.digits)
    return shapes + number + (bool(scene_.bars) and is_heldout_chart(scene_.bars))


def test_a_world_version_names_exactly_these_scenes_and_questions() -> None:
    """A change to either must come with a new WORLD_VERSION, or old accuracies stop meaning anything."""
    text = "".join(
        repr(scene(split, seed)) + repr(questions(scene(split, seed), random.Random(seed)))
        for split in ("train", "heldout")
        for seed in range(50)
    )
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "f0071a77a25e9b1b"


def test_the_same_seed_draws_the_same_picture() -> None:
    assert draw(scene("train", 7)).tobytes() == draw(scene("train", 7)).tobytes()


def test_training_scenes_hold_nothing_that_is_held_out() -> None:
    assert all(heldout_parts(scene("train", seed)) == 0 for seed in SEEDS)


def test_every_heldout_scene_holds_something_held_out() -> None:
    assert all(heldout_parts(scene("heldout", seed)) > 0 for seed in SEEDS)


def test_every_shape_meets_every_colour_in_training() -> None:
    seen = {(shape.shape, shape.colour) for seed in range(1000) for shape in scene("train", seed).shapes}
    assert len(seen) == 40


def test_sizes_span_the_range_and_are_not_only_square() -> None:
    sizes = [draw(scene("train", seed)).size for seed in SEEDS]
    assert all(MIN_SIDE_PX <= side <= MAX_SIDE_PX for size in sizes for side in size)
    assert 0.3 < sum(width != height for width, height in sizes) / len(sizes) < 0.7
    assert min(map(min, sizes)) < 40 and max(map(max, sizes)) > 230


@pytest.mark.parametrize("type_", TYPES)
def test_every_type_is_asked(type_: str) -> None:
    assert sum(question_of(scene("heldout", seed), type_, random.Random(seed)) is not None for seed in SEEDS) > 20


def test_half_of_the_presence_questions_are_about_absent_things() -> None:
    answers = [
        question.answer
        for seed in SEEDS
        if (question := question_of(scene("heldout", seed), "presence", random.Random(seed)))
    ]
    assert 0.4 < answers.count("no") / len(answers) < 0.6


def test_one_wording_never_has_two_answers_in_a_scene() -> None:
    for seed in SEEDS:
        answers: dict[str, str] = {}
        for question in questions(scene("train", seed), random.Random(seed)):
            assert answers.setdefault(question.text, question.answer) == question.answer


def test_presence_agrees_with_the_scene_graph() -> None:
    for seed in SEEDS:
        scene_ = scene("train", seed)
        names = {shape.name for shape in scene_.shapes}
        for question in questions(scene_, random.Random(seed)):
            if question.type == "presence":
                assert any(name in question.text for name in names) == (question.answer == "yes")


def test_the_picture_shows_the_colour_that_the_scene_says() -> None:
    """Read back from the pixels: the colour nearest to the middle of each filled shape."""
    palette = {**COLOURS, **BACKGROUNDS}
    for seed in SEEDS:
        scene_ = scene("heldout", seed)
        pixels = np.asarray(draw(scene_).resize((96, 96), Image.Resampling.BICUBIC)).astype(int)
        for shape in scene_.shapes:
            row, column = divmod(shape.cell, 3)
            x = round((2 * column + 1 + shape.shift[0]) * 16)
            y = round((2 * row + 1 + shape.shift[1]) * 16)
            seen = min(palette, key=lambda name: np.abs(pixels[y, x] - palette[name]).sum())
            assert seen == (scene_.background if shape.shape == "ring" else shape.colour)


def test_the_bars_are_as_high_as_the_scene_says() -> None:
    for seed in SEEDS:
        scene_ = scene("train", seed)
        pixels = np.asarray(draw(scene_)).astype(int)
        for index, bar in enumerate(scene_.bars):
            middle = pixels[:, round((index + 0.5) * scene_.width_px / 3)]
            filled = (np.abs(middle - COLOURS[bar.colour]).sum(-1) < 30).sum() / scene_.height_px
            assert round(filled / 0.16) == bar.value


def test_which_picture_names_a_thing_of_one_picture_only() -> None:
    for seed in SEEDS:
        pair = scene("heldout", seed), scene("heldout", seed + 1000)
        question = which_picture(*pair, random.Random(seed))
        if question is None:
            continue
        has = [any(shape.name in question.text for shape in scene_.shapes) for scene_ in pair]
        assert has == [question.answer == "first", question.answer == "second"]


def test_the_caption_names_every_shape_and_the_number() -> None:
    for seed in SEEDS:
        scene_ = scene("train", seed)
        text = caption(scene_)
        assert all(f"{shape.name} at the {shape.place}" in text for shape in scene_.shapes)
        assert scene_.number is None or f"the number {scene_.number.digits}" in text
