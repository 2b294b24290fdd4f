"""The fake behind the door's tests keeps the same contract as the fleet that speaks to the denoiser's port."""

from __future__ import annotations

import asyncio
import importlib
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from proteus.backend.fleet import Context, DrawFleet, EncodedText
from proteus.errors import BrokenModel
from proteus.generation.engine import DenoiseEngine
from proteus.generation.task import DrawEvent, DrawTask, Settings
from tests.backend.test_drawing import World, world
from tests.door.draw_models import DrawClient, DrawModels, draw_call, draw_door, is_empty, run
from tests.generation.denoisers import WIDTH
from tests.generation.painters import condition_of

__all__ = ["world"]  # a fixture of these tests
NO_CONTEXT = Context(parameters={})
SETTINGS = Settings(
    width_px=96, height_px=64, steps=5, guidance=3.0, sampler="euler", seed=7, preview_every=2, max_previews_per_s=1e3
)


def task(*, guided: bool = True, **settings: Any) -> DrawTask:
    return DrawTask(
        request_key=secrets.token_bytes(16),
        prompt=condition_of(1),
        negative=condition_of(2) if guided else None,
        settings=Settings(**{name: getattr(SETTINGS, name) for name in Settings.__slots__} | settings),
    )


@pytest.fixture
def real(world: World, engine: DenoiseEngine) -> DrawFleet:
    """Of the denoiser's port and engine alone."""
    drawing: Any = importlib.import_module("proteus.backend.drawing")
    port: Any = importlib.import_module("proteus.backend.port")
    world.port.close()
    world.port = port.Port(Kept(engine), drawing.DrawWire())
    fleet: DrawFleet = world.fleet
    return fleet


@pytest.fixture(params=["fake", "real"])
def fleet(request: pytest.FixtureRequest) -> DrawFleet:
    if request.param == "real":
        fleet: DrawFleet = request.getfixturevalue("real")
        return fleet
    models = DrawModels()
    models.step_s = 0.001
    return models


class Kept:
    """An engine that outlives the port before it."""

    def __init__(self, engine: Any) -> None:
        self.submit, self.cancel = engine.submit, engine.cancel

    def close(self) -> None:
        pass


async def events_of(fleet: DrawFleet, task: DrawTask) -> list[DrawEvent]:
    stream: AsyncGenerator[DrawEvent, None] = fleet.denoise(task, NO_CONTEXT)
    async with aclosing(stream) as events:
        return [event async for event in events]


@pytest.mark.parametrize("guided", [True, False])
def test_a_picture_is_denoised_with_previews_between_and_an_account_at_the_end(fleet: DrawFleet, guided: bool) -> None:
    async def scenario() -> None:
        asked = task(guided=guided, guidance=3.0 if guided else 1.0)
        *previews, last = await events_of(fleet, asked)
        assert [event.step for event in previews] in ([], [2], [4], [2, 4])
        for event in (*previews, last):
            assert event.clean is not None
            assert (event.steps, event.clean.shape, event.clean.dtype) == (5, (4, 8, 12), np.float32)
        assert all(event.end is None for event in previews)
        assert last.end is not None
        branches = 2 if guided else 1
        assert (last.step, last.end.reason, last.end.branches, last.end.evaluations) == (
            5,
            "done",
            branches,
            5 * branches,
        )
        again = (await events_of(fleet, task(guided=guided, guidance=asked.settings.guidance)))[-1]
        assert np.array_equal(again.clean, last.clean)

    run(scenario())


def test_a_stop_ends_a_picture_before_its_next_step_without_a_latent(fleet: DrawFleet) -> None:
    async def scenario() -> None:
        asked = task(steps=900, preview_every=1)
        last = None
        async with aclosing(fleet.denoise(asked, NO_CONTEXT)) as events:
            async for event in events:
                if last is None:
                    await fleet.stop(asked.request_key)
                last = event
        assert last is not None
        assert last.end is not None
        assert (last.clean, last.end.reason) == (None, "cancelled")
        assert 0 < last.end.evaluations < 1800

    run(scenario())


def test_a_stop_that_overtakes_its_picture_is_kept_for_it(fleet: DrawFleet) -> None:
    async def scenario() -> None:
        asked = task()
        await fleet.stop(asked.request_key)
        (only,) = await events_of(fleet, asked)
        assert only.end is not None
        assert (only.step, only.clean, only.end.reason, only.end.evaluations) == (0, None, "cancelled", 0)

    run(scenario())


def test_pictures_at_once_are_kept_apart(fleet: DrawFleet) -> None:
    async def scenario() -> None:
        tasks = [task(seed=seed, preview_every=0) for seed in range(4)]
        alone = [(await events_of(fleet, one))[-1].clean for one in tasks]
        again = [task(seed=seed, preview_every=0) for seed in range(4)]
        together = await asyncio.gather(*(events_of(fleet, one) for one in again))
        assert all(len(events) == 1 for events in together)
        assert all(np.array_equal(events[-1].clean, one) for events, one in zip(together, alone, strict=True))

    run(scenario())


class Mixed(DrawModels):
    """The real denoiser between a text encoder and a decoder whose answers are known; a prompt with a ~ overflows."""

    def __init__(self, real: DrawFleet) -> None:
        super().__init__()
        self.text_width = WIDTH
        self.denoise, self.stop = real.denoise, real.stop  # type: ignore[assignment]

    async def condition(self, ids: Any, key: bytes, context: Context) -> EncodedText:
        encoded = await super().condition(ids, key, context)
        if ord("~") in ids["input_ids"]:
            encoded.condition.states[:] = 3e38
        return encoded


def test_pixels_of_a_request_are_the_same_bits_alone_and_among_others_that_leave_or_fail(real: DrawFleet) -> None:
    asked = [
        draw_call(seed=1, steps=4),
        draw_call(seed=2, steps=20, guidance=7.5, sampler="ddim"),
        draw_call(seed=3, steps=11, guidance=1.0, sampler="heun"),
        draw_call(seed=4, steps=50, sampler="dpmpp_2m", n=2, preview_every=3),
        draw_call(seed=5, steps=9, size="96x64", prompt="a blue square"),
    ]

    async def scenario() -> None:
        door = draw_door(Mixed(real))
        alone, together = [DrawClient() for _ in asked], [DrawClient() for _ in asked]
        for call, client in zip(asked, alone, strict=True):
            await door.answer(call, client)
        leaver = DrawClient()
        others = [
            asyncio.create_task(door.answer(draw_call(seed=6, steps=100, n=4), leaver)),
            asyncio.create_task(door.answer(draw_call(seed=7, steps=90, prompt="~"), DrawClient())),
        ]
        works = [door.answer(call, client) for call, client in zip(asked, together, strict=True)]
        asyncio.get_running_loop().call_later(0.05, setattr, leaver, "gone", True)
        await asyncio.gather(*works)
        results = await asyncio.gather(*others, return_exceptions=True)
        assert isinstance(results[1], BrokenModel)
        assert leaver.report["finish_reason"] == "cancelled"
        for one, other in zip(alone, together, strict=True):
            assert other.report["usage"] == one.report["usage"]
            assert len(other.images) == len(one.images) > 0
            assert all(np.array_equal(other.pixels(index), one.pixels(index)) for index in range(len(one.images)))
        assert is_empty(door)

    run(scenario())
