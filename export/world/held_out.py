"""Questions about held-out scenes: what accuracy is measured on, always the same ones."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from export.world.questions import Question, question_of, which_picture
from export.world.scene import Scene, scene


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A question, and the scenes whose pictures it is asked about."""

    scenes: tuple[Scene, ...]
    question: Question


def held_out_items(type_: str, count: int) -> list[Item]:
    """The first `count` questions of this type over the held-out scenes, in order of seed."""
    items: list[Item] = []
    for seed in itertools.count():
        rng = random.Random(seed)
        scenes: tuple[Scene, ...] = (scene("heldout", seed),)
        if type_ == "which":
            scenes = first, second = (*scenes, scene("heldout", seed + 1_000_000))
            question = which_picture(first, second, rng)
        else:
            question = question_of(scenes[0], type_, rng)
        if question is not None:
            items.append(Item(scenes=scenes, question=question))
            if len(items) == count:
                break
    return items
