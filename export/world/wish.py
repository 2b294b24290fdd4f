"""What a prompt asks for, as facts that can be looked for in a picture, and the prompts that say it.

A wish is taken from a scene and may leave things open: a colour, a shape, a place, the background. Prompts are words of
a small grammar; the same wish has many.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from export.world.scene import (
    BACKGROUNDS,
    COLOURS,
    MAX_SHAPES,
    PLACES,
    SHAPES,
    WORLD_VERSION,
    Scene,
    Shape,
    Split,
    is_heldout_shape,
)

COUNTS = ("one", "two", "three", "four")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """One shape; None is left open."""

    shape: str | None
    colour: str | None
    cell: int | None  # 0..8, row by row


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    background: str | None
    things: tuple[Thing, ...]


def drawing(split: Split, seed: int, *, width_px: int = 64, height_px: int = 64) -> Scene:
    """A scene of one to four large shapes and nothing else: what the drawing model learns.

    `train` has no held-out composition; in `heldout` every shape is one.
    """
    rng = random.Random(f"proteus-drawing-{WORLD_VERSION}-{split}-{seed}")
    shapes = []
    for cell in rng.sample(range(9), rng.randint(1, MAX_SHAPES)):
        while True:
            shape, colour = rng.choice(SHAPES), rng.choice(list(COLOURS))
            if is_heldout_shape(shape, colour, cell) == (split == "heldout"):
                break
        radius = rng.uniform(0.74, 0.86)
        slack = 0.92 - radius
        shift = (rng.uniform(-slack, slack), rng.uniform(-slack, slack))
        shapes.append(Shape(shape=shape, colour=colour, cell=cell, small=False, radius=radius, shift=shift))
    return Scene(
        split=split,
        seed=seed,
        width_px=width_px,
        height_px=height_px,
        background=rng.choice(list(BACKGROUNDS)),
        shapes=tuple(shapes),
    )


def full_wish(scene: Scene) -> Wish:
    """Everything that can be said of the scene."""
    things = tuple(Thing(shape=shape.shape, colour=shape.colour, cell=shape.cell) for shape in scene.shapes)
    return Wish(background=scene.background, things=things)


def vague_wish(scene: Scene, rng: random.Random) -> Wish:
    """The same with some of it left open."""
    wish = full_wish(scene)
    things = []
    for thing in wish.things:
        left_open = rng.random()
        if left_open < 0.15:
            thing = replace(thing, colour=None)
        elif left_open < 0.3:
            thing = replace(thing, shape=None)
        elif left_open < 0.45:
            thing = replace(thing, cell=None)
        things.append(thing)
    return Wish(background=wish.background if rng.random() < 0.5 else None, things=tuple(things))


def prompt(wish: Wish, rng: random.Random) -> str:
    """One of the ways to say it; things come in any order."""
    things = [_named(thing, rng) for thing in rng.sample(wish.things, len(wish.things))]
    several = ", ".join(things[:-1]) + " and " + things[-1] if len(things) > 1 else things[0]
    listed = ", ".join(things)
    if wish.background is None:
        return rng.choice((several, listed, f"a picture of {several}", f"{_count(wish)}: {listed}"))
    ground = wish.background
    return rng.choice(
        (
            f"{several} on a {ground} background",
            f"{listed}, {ground} background",
            f"a {ground} picture with {several}",
            f"{_count(wish)} on {ground}: {listed}",
        )
    )


def _count(wish: Wish) -> str:
    number = len(wish.things)
    return f"{COUNTS[number - 1]} shape{'s' if number > 1 else ''}"


def _named(thing: Thing, rng: random.Random) -> str:
    name = f"{thing.colour} {thing.shape or 'shape'}" if thing.colour else thing.shape or "shape"
    article = "an" if name[0] in "aeiou" else "a"
    where = "" if thing.cell is None else f" {rng.choice(('at', 'in'))} the {PLACES[thing.cell]}"
    return f"{article} {name}{where}"
