"""What every contestant is asked in one turn: pictures that nobody saw before, except those shown again on purpose."""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from export.world.draw import draw
from export.world.questions import questions
from export.world.scene import scene

Item = TypeVar("Item")

PICTURE_PX = 512  # square: OpenVINO GenAI cuts others where the checkpoint's own processor squeezes them
TOKENS = 32  # of every answer, whatever token would have ended it
MOST_OF_A_RUN = 100_000  # turns of one kind never share a seed


@dataclass(frozen=True, slots=True)
class Ask:
    """One encoded picture and one question about it."""

    picture: bytes
    question: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """So many clients, each of which asks again as soon as it is answered, and so many requests in all."""

    title: str
    clients: int
    requests: int
    repeated_percent: int = 0  # of the requests show a picture that was shown before
    seed: int = 0

    def asks(self, turn: int) -> list[Ask]:
        """Of one turn; no two turns have a picture in common."""
        rng = random.Random(f"{self.title} {turn}")
        fresh = itertools.count(self.seed + turn * self.requests)  # of scenes
        return [ask(seed, rng) for seed in with_repeats(fresh, self.requests, self.repeated_percent, self.clients, rng)]


def end_to_end(clients: int, requests: int, number: int) -> Task:
    return Task(title=f"e2e/{clients}", clients=clients, requests=requests, seed=(number + 1) * MOST_OF_A_RUN)


def reuse(percent: int, clients: int, requests: int, number: int) -> Task:
    seed = (number + 101) * MOST_OF_A_RUN
    return Task(title=f"reuse/{percent}", clients=clients, requests=requests, repeated_percent=percent, seed=seed)


def with_repeats(
    fresh: Iterator[Item], requests: int, percent: int, clients: int, rng: random.Random
) -> Iterator[Item]:
    """Evenly spread repeats, each of one that the clients have behind them, if there is one."""
    shown: list[Item] = []
    for number in range(requests):
        is_repeat = (number + 1) * percent // 100 > number * percent // 100
        if not (is_repeat and shown):
            shown.append(next(fresh))
            yield shown[-1]
        else:
            yield rng.choice(behind(shown, clients))


def behind(shown: Sequence[Item], clients: int) -> Sequence[Item]:
    return shown[:-clients] or shown[:1]


def ask(seed: int, rng: random.Random) -> Ask:
    """A picture the model was not trained on, as an application would send it: a JPEG file."""
    drawn = scene("heldout", seed)
    encoded = io.BytesIO()
    draw(drawn).resize((PICTURE_PX, PICTURE_PX)).save(encoded, "jpeg", quality=90)
    return Ask(encoded.getvalue(), rng.choice(questions(drawn, rng)).text)
