"""Questions with true answers, and captions, from the scene graph alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from export.world.scene import COLOURS, SHAPES, Scene, Shape

WORDINGS = {
    "colour of shape": ("What colour is the {0}?", "Which colour is the {0}?", "What color does the {0} have?"),
    "colour at place": ("What colour is the shape at the {0}?", "Which color is at the {0}?"),
    "shape of colour": ("What shape is {0}?", "Which shape is {0}?", "What is the {0} shape?"),
    "shape at place": ("What shape is at the {0}?", "Which shape do you see at the {0}?"),
    "place": ("Where is the {0}?", "In which place is the {0}?"),
    "small": ("What is the small shape?", "Which shape is small?"),
    "count": ("How many shapes are there?", "How many shapes do you see?", "Count the shapes."),
    "count of": ("How many {0} shapes are there?", "How many {0} shapes do you see?"),
    "presence": ("Is there a {0}?", "Do you see a {0}?", "Can you see a {0} in the picture?"),
    "read": ("What number is written?", "Which number do you see?", "Read the number."),
    "value": ("How high is the {0} bar?", "What is the value of the {0} bar?"),
    "tallest": ("Which bar is the tallest?", "What colour is the tallest bar?"),
    "which": ("Which picture has a {0}?", "In which picture is there a {0}?"),
}

TYPES = ("colour", "shape", "place", "count", "presence", "read", "chart", "small")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    type: str
    text: str
    answer: str


def questions(scene: Scene, rng: random.Random) -> list[Question]:
    """Every question that has one true answer for `scene`, worded by `rng`; presence once true, once false."""
    asked = list(_chart(scene, rng)) if scene.bars else list(_shapes(scene, rng))
    if scene.number:
        asked.append(Question(type="read", text=_word(rng, "read"), answer=scene.number.digits))
    return asked


def question_of(scene: Scene, type_: str, rng: random.Random) -> Question | None:
    """One question of this type, or None where the scene has none; presence is absent half the time."""
    fitting = [question for question in questions(scene, rng) if question.type == type_]
    return rng.choice(fitting) if fitting else None


def caption(scene: Scene) -> str:
    """What is in the picture, row by row."""
    if scene.bars:
        bars = ", ".join(f"{bar.colour} {bar.value}" for bar in scene.bars)
        return f"a bar chart: {bars}"
    parts = [f"a {shape.name} at the {shape.place}" for shape in sorted(scene.shapes, key=lambda shape: shape.cell)]
    if scene.number:
        parts.append(f"the number {scene.number.digits}")
    return ", ".join(parts)


def which_picture(first: Scene, second: Scene, rng: random.Random) -> Question | None:
    """A question that needs both pictures: which of them has a thing that the other has not."""
    names = {shape.name for shape in first.shapes}, {shape.name for shape in second.shapes}
    index = rng.randrange(2)
    only = sorted(names[index] - names[1 - index])
    if not only:
        return None
    return Question(type="which", text=_word(rng, "which", rng.choice(only)), answer=("first", "second")[index])


def _word(rng: random.Random, key: str, *names: str) -> str:
    return rng.choice(WORDINGS[key]).format(*names)


def _chart(scene: Scene, rng: random.Random) -> Iterator[Question]:
    for bar in scene.bars:
        yield Question(type="chart", text=_word(rng, "value", bar.colour), answer=str(bar.value))
    tallest = max(bar.value for bar in scene.bars)
    winners = [bar for bar in scene.bars if bar.value == tallest]
    if len(winners) == 1:
        yield Question(type="chart", text=_word(rng, "tallest"), answer=winners[0].colour)


def _shapes(scene: Scene, rng: random.Random) -> Iterator[Question]:
    shapes = scene.shapes
    by_shape, by_colour = Counter(s.shape for s in shapes), Counter(s.colour for s in shapes)
    by_name = Counter(s.name for s in shapes)
    for s in shapes:
        if by_shape[s.shape] == 1:
            yield Question(type="colour", text=_word(rng, "colour of shape", s.shape), answer=s.colour)
        yield Question(type="colour", text=_word(rng, "colour at place", s.place), answer=s.colour)
        if by_colour[s.colour] == 1:
            yield Question(type="shape", text=_word(rng, "shape of colour", s.colour), answer=s.shape)
        yield Question(type="shape", text=_word(rng, "shape at place", s.place), answer=s.shape)
        if by_name[s.name] == 1:
            yield Question(type="place", text=_word(rng, "place", s.name), answer=s.place)
        if s.small:
            yield Question(type="small", text=_word(rng, "small"), answer=f"{s.colour} {s.shape}")
    yield Question(type="count", text=_word(rng, "count"), answer=str(len(shapes)))
    colour, shape = rng.choice(sorted(by_colour)), rng.choice(sorted(by_shape))
    yield Question(type="count", text=_word(rng, "count of", colour), answer=str(by_colour[colour]))
    yield Question(type="count", text=_word(rng, "count of", shape), answer=str(by_shape[shape]))
    yield from _presence(scene, rng)


def _presence(scene: Scene, rng: random.Random) -> Iterator[Question]:
    """A thing that is there and one that is not, which shares its shape or its colour with a real one."""
    there = rng.choice(scene.shapes)
    yield Question(type="presence", text=_word(rng, "presence", there.name), answer="yes")
    names = {shape.name for shape in scene.shapes}
    swaps: tuple[Callable[[Shape], str], ...] = (
        lambda s: f"{rng.choice(list(COLOURS))} {s.shape}",
        lambda s: f"{s.colour} {rng.choice(SHAPES)}",
    )
    while (absent := rng.choice(swaps)(rng.choice(scene.shapes))) in names:
        pass
    yield Question(type="presence", text=_word(rng, "presence", absent), answer="no")
