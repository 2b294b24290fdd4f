"""Who leaves, or is stopped by name, ends the work in whatever stage it is; what is done is sent, nobody else sees."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from proteus.backend.fleet import Context
from proteus.door.arrival import Call
from proteus.door.draw import Draw
from proteus.door.reply import DrawPiece
from proteus.errors import InvalidRequest, ProteusError, QueueFull
from tests.door.draw_models import DrawClient, DrawModels, draw_call, draw_door, is_empty, run, until

STAGES = ("queue", "condition", "before the first step", "between steps", "decode")


async def stop(door: Draw, request_id: str, **fields: Any) -> dict[str, Any]:
    client = DrawClient()
    document = json.dumps({"stop": {"request_id": request_id, **fields}}).encode()
    await door.answer(Call(document=document, context=Context(parameters={})), client)
    return client.report


def reached(stage: str, door: Draw, models: DrawModels, client: DrawClient) -> Callable[[], bool]:
    return {
        "queue": lambda: door.figures().admission.queued["media"] == 1,
        "condition": lambda: bool(models.encoded),
        "before the first step": lambda: bool(models.tasks),
        "between steps": lambda: bool(client.previews),
        "decode": lambda: bool(models.decoded),
    }[stage]


def unsent(door: Draw) -> tuple[float, ...]:
    """Pictures, rows, seconds."""
    figures = door.figures()
    names = (f"proteus_draw_unsent_{what}_total" for what in ("images", "rows", "seconds"))
    return tuple(figures.values(name)[""] for name in names)


@pytest.mark.parametrize("by", ["its id", "its client"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_request_ends_in_every_stage(stage: str, by: str) -> None:
    async def scenario() -> None:
        models, client = DrawModels(), DrawClient()
        door = draw_door(models, requests=1, queued=4)
        gate = {"queue": "step", "before the first step": "step"}.get(stage, stage)
        models.step_s = 0.01
        if stage != "between steps":
            models.gates[gate].clear()
        before = asyncio.create_task(door.answer(draw_call(seed=1), DrawClient())) if stage == "queue" else None
        await until(lambda: before is None or bool(models.tasks))
        many = {"steps": 100, "preview_every": 1} if stage == "between steps" else {}
        drawing = asyncio.create_task(door.answer(draw_call(request_id="mine", **many), client))
        await until(reached(stage, door, models, client))
        if by == "its id":
            assert await stop(door, "mine") == {"stopped": 1}
        else:
            client.gone = True
        await drawing
        assert client.report["finish_reason"] == "cancelled"
        assert client.images == []
        told = stage not in ("queue", "condition")
        assert models.stopped == ([models.tasks[-1].request_key] if told else [])
        assert len(models.decoded) == (1 if stage == "decode" else 0)
        if before is not None:
            models.gates[gate].set()
            await before
        assert await stop(door, "mine") == {"stopped": 0}, "it has ended"
        assert is_empty(door)

    run(scenario())


def test_what_a_stopped_request_cost_is_in_its_report() -> None:
    async def scenario() -> None:
        models, client = DrawModels(), DrawClient()
        models.step_s = 0.01
        door = draw_door(models)
        drawing = asyncio.create_task(
            door.answer(draw_call(request_id="mine", n=2, steps=100, preview_every=1), client)
        )
        await until(lambda: bool(client.previews))
        await stop(door, "mine")
        await drawing
        report = client.report
        evaluations = [image["evaluations"] for image in report["images"]]
        assert all(0 < number < 200 for number in evaluations)
        assert (report["usage"]["images"], report["usage"]["evaluations"]) == (0, sum(evaluations))
        assert report["usage"]["token_passes"] == 64 * sum(evaluations)
        assert [image["finish_reason"] for image in report["images"]] == ["cancelled"] * 2
        assert set(models.stopped) == {task.request_key for task in models.tasks}

    run(scenario())


def test_pictures_that_are_done_stay() -> None:
    async def scenario() -> None:
        models, client = DrawModels(), DrawClient()
        door = draw_door(models)
        decode = models.decode
        second = asyncio.Event()

        async def decode_one(latents: Any, context: Context) -> Any:
            if models.decoded:
                second.set()
                await asyncio.Event().wait()
            return await decode(latents, context)

        models.decode = decode_one  # type: ignore[method-assign]
        drawing = asyncio.create_task(door.answer(draw_call(request_id="mine", n=2), client))
        await until(lambda: bool(client.images) and second.is_set())
        assert await stop(door, "mine") == {"stopped": 1}
        await drawing
        assert len(client.images) == 1
        report = client.report
        assert (report["finish_reason"], report["usage"]["images"]) == ("cancelled", 1)
        assert sorted(image["finish_reason"] for image in report["images"]) == ["cancelled", "done"]
        assert report["usage"]["evaluations"] == 80, "the denoiser had done both"

    run(scenario())


def test_what_the_denoiser_did_for_pictures_that_nobody_waited_for_any_more_is_counted() -> None:
    async def scenario() -> None:
        models = DrawModels()
        door = draw_door(models)
        await door.answer(draw_call(), DrawClient())
        assert unsent(door) == (0, 0, 0)
        models.gates["decode"].clear()
        drawing = asyncio.create_task(door.answer(draw_call(request_id="mine", n=2), DrawClient()))
        await until(lambda: len(models.decoded) == 3)
        await stop(door, "mine")
        await drawing
        assert unsent(door) == (2, 80, pytest.approx(0.003)), "40 evaluations and 1.5 ms each"

    run(scenario())


def test_ids_are_of_a_tenant_and_scope_and_of_this_door() -> None:
    async def scenario() -> None:
        models, client = DrawModels(), DrawClient()
        models.gates["step"].clear()
        door = draw_door(models)
        drawing = asyncio.create_task(door.answer(draw_call(request_id="x", tenant="a"), client))
        await until(lambda: bool(models.tasks))
        with pytest.raises(InvalidRequest, match="request_id is that of another open request"):
            await door.answer(draw_call(request_id="x", tenant="a"), DrawClient())
        assert await stop(door, "x", tenant="b") == await stop(door, "x") == {"stopped": 0}
        assert await stop(door, "x", tenant="a") == {"stopped": 1}
        await drawing
        models.gates["step"].set()
        await door.answer(draw_call(request_id="x", tenant="a", steps=1), DrawClient())
        assert is_empty(door)

    run(scenario())


def test_a_stop_needs_no_seat() -> None:
    async def scenario() -> None:
        models, client = DrawModels(), DrawClient()
        models.gates["step"].clear()
        door = draw_door(models, requests=1, queued=0)
        drawing = asyncio.create_task(door.answer(draw_call(request_id="mine"), client))
        await until(lambda: bool(models.tasks))
        with pytest.raises(QueueFull, match=r"limit: \[draw.admission\] capacity.requests and all queues together = 1"):
            await door.answer(draw_call(), DrawClient())
        assert await stop(door, "mine") == {"stopped": 1}
        await drawing

    run(scenario())


def test_a_reply_that_cannot_be_sent_stops_the_denoiser_and_gives_everything_back() -> None:
    class Broken(DrawClient):
        def send(self, piece: DrawPiece) -> None:
            raise OSError("gone")

    async def scenario() -> None:
        models = DrawModels()
        door = draw_door(models)
        with pytest.raises(OSError, match="gone"):
            await door.answer(draw_call(n=2), Broken())
        assert is_empty(door)

    run(scenario())


def test_a_task_cancelled_at_any_moment_gives_everything_back() -> None:
    async def scenario() -> None:
        models = DrawModels()
        door = draw_door(models, requests=2, queued=8)
        for moment in range(40):
            tasks = [asyncio.create_task(door.answer(draw_call(n=2, preview_every=1), DrawClient())) for _ in range(5)]
            for _ in range(moment % 13):
                await asyncio.sleep(0.0005 * (moment % 5))
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
            assert is_empty(door)

    run(scenario())


def test_200_requests_cancelled_at_random_change_nothing_of_the_others() -> None:
    async def scenario() -> None:
        alone = DrawClient()
        await draw_door(DrawModels()).answer(draw_call(steps=8, seed=4, n=2), alone)
        wanted = [alone.pixels(0), alone.pixels(1)]
        models = DrawModels()
        models.step_s = 0.001
        door = draw_door(models, requests=32, queued=300)
        chance = random.Random(5)
        stayers, leavers = [DrawClient() for _ in range(10)], [DrawClient() for _ in range(200)]

        async def leave(client: DrawClient, name: str) -> None:
            await asyncio.sleep(chance.random() * 0.4)
            if chance.random() < 0.5:
                client.gone = True
            else:
                await stop(door, name)

        works = [door.answer(draw_call(steps=8, seed=4, n=2, preview_every=2), client) for client in stayers]
        for number, client in enumerate(leavers):
            fields = {"steps": chance.randint(1, 100), "seed": number, "n": chance.randint(1, 3), "preview_every": 1}
            works.append(door.answer(draw_call(request_id=str(number), **fields), client))
            works.append(leave(client, str(number)))
        results = await asyncio.gather(*works, return_exceptions=True)
        assert not [result for result in results if isinstance(result, BaseException)]
        for client in stayers:
            assert client.report["finish_reason"] == "done"
            assert all(np.array_equal(client.pixels(index), wanted[index]) for index in range(2))
        reasons = {client.report["finish_reason"] for client in leavers}
        assert reasons <= {"done", "cancelled"}
        assert sum(client.report["finish_reason"] == "cancelled" for client in leavers) > 50
        assert is_empty(door)

    run(scenario())


def test_concurrent_requests_of_which_some_fail_leave_the_others_alone() -> None:
    async def scenario() -> None:
        models = DrawModels()
        door = draw_door(models)
        models.errors["denoise"] = InvalidRequest("broken")
        models.fails = lambda task: task.settings.seed % 3 == 0
        clients = [DrawClient() for _ in range(10)]
        works = (door.answer(draw_call(seed=seed), client) for seed, client in enumerate(clients))
        results = await asyncio.gather(*works, return_exceptions=True)
        assert [isinstance(result, ProteusError) for result in results] == [seed % 3 == 0 for seed in range(10)]
        assert [len(client.images) for client in clients] == [int(seed % 3 != 0) for seed in range(10)]
        assert is_empty(door)

    run(scenario())
