"""Previews never hold up a picture: one in the making at a time, the latest of those that come meanwhile, no more."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from proteus.door.draw_figures import FIGURES, DrawCounts
from proteus.door.draw_previews import Previews
from proteus.errors import InvalidPicture, Unavailable
from proteus.generation.encode import settings_of
from proteus.generation.preview import LinearPreview
from proteus.generation.task import DrawEvent
from tests.door.draw_models import (
    CHANNELS,
    MANIFEST,
    DrawClient,
    DrawModels,
    draw_call,
    draw_door,
    latent_of,
    pixels_in,
    pixels_of,
    run,
    until,
)


def event(step: int) -> DrawEvent:
    return DrawEvent(step=step, steps=20, clean=np.full((CHANNELS, 8, 8), step, dtype=np.float32))


@pytest.mark.parametrize("by", ["linear", "decoder"])
def test_previews_come_before_the_picture_and_tell_their_step(by: str) -> None:
    async def scenario() -> None:
        models, client = DrawModels(), DrawClient()
        models.pace = lambda step: until(lambda: client.previews[-1:] != [] and client.previews[-1]["step"] == step)
        door = draw_door(models)
        await door.answer(draw_call(preview_every=5, preview_by=by), client)
        assert [preview["step"] for preview in client.previews] == [5, 10, 15]
        assert client.previews[0] == {
            "kind": "preview",
            "index": 0,
            "step": 5,
            "steps": 20,
            "format": "png",
            "width_px": 64,
            "height_px": 64,
        }
        report = client.report
        assert 0 < report["first_preview_ms"] < report["stages_ms"]["total"]
        assert len(models.decoded) == (4 if by == "decoder" else 1)
        figures = door.figures()
        assert figures.values("proteus_draw_door_previews_total") == {"sent": 3, "dropped": 0, "failed": 0}
        seconds = figures.values("proteus_draw_door_preview_seconds_total")
        assert {name for name, value in seconds.items() if value} == {by}
        assert figures.values("proteus_draw_first_previews_total") == {"": 1}
        assert figures.values("proteus_draw_first_preview_seconds_total")[""] > 0

    run(scenario())


@pytest.mark.parametrize("by", ["linear", "decoder"])
def test_previews_show_the_estimate_through_the_map_or_the_decoder(by: str) -> None:
    async def scenario() -> None:
        models, client = DrawModels(), DrawClient()
        models.pace = lambda _: until(lambda: bool(client.previews))
        await draw_door(models).answer(draw_call(steps=2, preview_every=1, preview_by=by), client)
        clean = latent_of(models.tasks[0]) * np.float32(0.5)
        linear = LinearPreview(MANIFEST.preview)(clean, width_px=64, height_px=64)
        (file,) = client.preview_files
        assert np.array_equal(pixels_in(file), linear if by == "linear" else pixels_of(clean))
        with pytest.raises(InvalidPicture):
            settings_of(file)

    run(scenario())


def test_the_latest_wins_and_what_it_replaced_is_counted() -> None:
    async def scenario() -> None:
        counts, made, go_on = DrawCounts(), list[int](), asyncio.Event()

        async def make(event: DrawEvent) -> None:
            await go_on.wait()
            made.append(event.step)

        previews = Previews(make, asyncio.Semaphore(1), counts)
        for step in (1, 2, 3, 4):
            previews.offer(event(step))
            await asyncio.sleep(0.001)
        go_on.set()
        await until(lambda: len(made) == 2)
        assert made == [1, 4]
        assert counts.previews == {"sent": 2, "dropped": 2, "failed": 0}
        previews.offer(event(5))
        await until(lambda: len(made) == 3)
        await previews.close()
        assert counts.previews == {"sent": 3, "dropped": 2, "failed": 0}

    run(scenario())


def test_what_is_in_the_making_when_the_picture_is_done_is_dropped() -> None:
    async def scenario() -> None:
        counts = DrawCounts()

        async def make(_: DrawEvent) -> None:
            await asyncio.Event().wait()

        previews = Previews(make, asyncio.Semaphore(1), counts)
        previews.offer(event(1))
        await asyncio.sleep(0.001)
        previews.offer(event(2))
        await previews.close()
        assert counts.previews == {"sent": 0, "dropped": 2, "failed": 0}
        await Previews(make, asyncio.Semaphore(1), counts).close()

    run(scenario())


def test_places_are_shared_by_pictures_and_who_waits_for_one_keeps_the_latest_only() -> None:
    async def scenario() -> None:
        counts, places, made, go_on = DrawCounts(), asyncio.Semaphore(1), list[int](), asyncio.Event()

        async def make(event: DrawEvent) -> None:
            await go_on.wait()
            made.append(event.step)

        first, second = Previews(make, places, counts), Previews(make, places, counts)
        first.offer(event(1))
        await asyncio.sleep(0.001)
        for step in (11, 12, 13):
            second.offer(event(step))
            await asyncio.sleep(0.001)
        go_on.set()
        await until(lambda: len(made) == 2)
        assert made == [1, 13]
        await asyncio.gather(first.close(), second.close())
        assert not places.locked()
        assert counts.previews == {"sent": 2, "dropped": 2, "failed": 0}

    run(scenario())


@pytest.mark.parametrize("error", [Unavailable("dead"), OSError("no thread")])
def test_a_preview_that_fails_is_left_out_and_the_next_one_made(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        counts, made = DrawCounts(), list[int]()

        async def make(event: DrawEvent) -> None:
            if event.step == 1:
                raise error
            made.append(event.step)

        previews = Previews(make, asyncio.Semaphore(1), counts)
        previews.offer(event(1))
        await until(lambda: counts.previews["failed"] == 1)
        previews.offer(event(2))
        await until(lambda: made == [2])
        await previews.close()

    run(scenario())
    assert ("a preview could not be made" in caplog.text) == isinstance(error, OSError)


def test_a_decoder_that_is_stuck_on_previews_does_not_hold_up_the_steps() -> None:
    async def scenario() -> None:
        models, client = DrawModels(), DrawClient()
        models.gates["decode"].clear()
        door = draw_door(models)
        drawing = asyncio.create_task(door.answer(draw_call(preview_every=1, preview_by="decoder"), client))
        await until(lambda: len(models.decoded) == 2)
        assert np.array_equal(models.decoded[1], latent_of(models.tasks[0])), "the picture's own, after all steps"
        models.gates["decode"].set()
        await drawing
        assert client.previews == []
        assert client.report["first_preview_ms"] is None
        assert door.figures().values("proteus_draw_door_previews_total") == {"sent": 0, "dropped": 19, "failed": 0}

    run(scenario())


def test_every_figure_has_a_value() -> None:
    figures = draw_door(DrawModels()).figures()
    assert all(isinstance(figures.values(row.name), dict) for row in FIGURES)
    assert len({row.name for row in FIGURES}) == len(FIGURES)
