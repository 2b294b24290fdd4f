"""Sixteen clients at once, no two of whom want the same: each gets the very picture that it gets alone."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from proteus.client import Client, Drawing, Drawn, Preview
from proteus.generation.encode import settings_of
from proteus.launcher import Server
from tests.server.figures import metrics, until
from tests.server.test_draw import PROMPT

CLIENTS = 16
SIZES = ("32x32", "48x32", "32x48", "24x16")
SAMPLERS = ("euler", "ddim", "heun", "dpmpp_2m")
# Every sampler with every size, and with each of them steps, guidance, format and number of another period.
WANTED: tuple[dict[str, Any], ...] = tuple(
    {
        "seed": 1000 + number,
        "sampler": SAMPLERS[number % 4],
        "size": SIZES[number // 4],
        "steps": (4, 20, 50)[number % 3],
        "guidance": (1.0, 3.0)[number // 2 % 2],
        "negative_prompt": ("", "green")[number // 3 % 2],
        "n": 1 + (number % 5 == 0),
        "format": ("png", "webp")[number // 5 % 2],
        "quality": 100,
    }
    for number in range(CLIENTS)
)
SETTLED_S = 2.0  # what was drawn before is in the figures then, which are told once a second
PREVIEWS = (0, 1, 3)  # preview_every, of the sixteen in turn


def pixels(data: bytes) -> npt.NDArray[np.int16]:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"), dtype=np.int16)


def streamed(server: Server, start: Barrier | None = None, **options: Any) -> Sequence[Preview | Drawn | Drawing]:
    with Client(server.ports.grpc_url) as client:
        if start is not None:
            start.wait(30)
        return list(client.stream_draw(PROMPT, **options))


@dataclass(frozen=True)
class Round:
    streams: list[Sequence[Preview | Drawn | Drawing]]
    num_calls: float  # of the denoiser


def counted(server: Server, draw: Callable[[], list[Sequence[Any]]]) -> Round:
    """The bills of all that was drawn add up to what the server counts."""
    time.sleep(SETTLED_S)
    before = metrics(server)
    streams = draw()
    evaluations = sum(stream[-1].usage.evaluations for stream in streams)
    counts = "proteus_draw_evaluations_total"
    assert until(server, lambda now: now[counts] - before.get(counts, 0) == evaluations)
    counts = "proteus_draw_calls_total"
    return Round(streams, metrics(server)[counts] - before.get(counts, 0))


@pytest.fixture(scope="module")
def alone(draw_server: Server) -> Round:
    """Each of WANTED with the server to itself."""
    return counted(draw_server, lambda: [streamed(draw_server, **options) for options in WANTED])


@pytest.fixture(scope="module")
def together(draw_server: Server, alone: Round) -> Round:
    """All of WANTED at one moment, some with previews."""
    start = Barrier(CLIENTS)
    asked = [
        options | {"preview_every": PREVIEWS[number % 3], "preview_by": ("linear", "decoder")[number % 2]}
        for number, options in enumerate(WANTED)
    ]
    with ThreadPoolExecutor(CLIENTS) as threads:
        return counted(
            draw_server, lambda: list(threads.map(lambda options: streamed(draw_server, start, **options), asked))
        )


def pictures_of(streams: Sequence[Sequence[Any]]) -> list[Drawn]:
    return [picture for stream in streams for picture in stream[-1].pictures]


def test_every_picture_in_company_is_the_one_drawn_alone(alone: Round, together: Round) -> None:
    differences = [
        int(np.abs(pixels(mine.data) - pixels(theirs.data)).max())
        for mine, theirs in zip(pictures_of(alone.streams), pictures_of(together.streams), strict=True)
    ]
    assert differences == [0] * sum(options["n"] for options in WANTED)


def test_no_two_of_them_are_the_same_picture(alone: Round) -> None:
    drawn = [pixels(picture.data).tobytes() for picture in pictures_of(alone.streams)]
    assert len(set(drawn)) == len(drawn)


def test_in_company_they_shared_the_denoisers_calls(alone: Round, together: Round) -> None:
    """Were they drawn one after the other, nothing of this would say anything."""
    assert 0 < together.num_calls < alone.num_calls


def test_every_file_says_what_was_asked_for_and_draws_itself_again(draw_server: Server, together: Round) -> None:
    for options, stream in zip(WANTED, together.streams, strict=True):
        for index, picture in enumerate(pictures_of([stream])):
            told = settings_of(picture.data)
            asked = options.keys() & told.keys()
            assert {name: told[name] for name in asked} == {name: options[name] for name in asked}
            assert told == picture.settings
            assert told["image_index"] == picture.image_index == picture.index == index
    recipe = dict(picture.settings)
    del recipe["revision"]
    prompt, first_index = recipe.pop("prompt"), recipe.pop("image_index")
    with Client(draw_server.ports.grpc_url) as client:
        again = client.draw(prompt, first_index=first_index, format=picture.format, quality=100, **recipe)
    assert first_index == 1 and again.pictures[0].data == picture.data


def test_previews_came_before_their_picture_and_in_order(together: Round) -> None:
    seen = 0
    for number, stream in enumerate(together.streams):
        done = set[int]()
        last: dict[int, int] = {}
        for item in stream[:-1]:
            assert isinstance(item, Preview | Drawn) and item.index not in done
            if isinstance(item, Drawn):
                done.add(item.index)
                continue
            seen += 1
            assert last.get(item.index, 0) < item.step <= item.steps == WANTED[number]["steps"]
            assert item.step % PREVIEWS[number % 3] == 0
            assert item.image.size == (item.width_px, item.height_px) == tuple(map(int, SIZES[number // 4].split("x")))
            last[item.index] = item.step
        assert done == set(range(WANTED[number]["n"]))
    assert seen, "no preview came at all"
