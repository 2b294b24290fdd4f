"""The way of a request to draw through the stages, with models whose answers and failures the test decides."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from proteus.backend.fleet import Context
from proteus.door.arrival import Call
from proteus.errors import (
    BrokenModel,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    MediaTooLarge,
    PromptTooLong,
    ProteusError,
    QueueFull,
    Unavailable,
)
from proteus.generation.encode import settings_of
from tests.door.draw_models import (
    MANIFEST,
    DrawClient,
    DrawModels,
    draw_call,
    draw_door,
    is_empty,
    latent_of,
    pixels_of,
    run,
    until,
)

STAGES = ["parse", "plan", "admission", "condition", "queue", "denoise", "decode", "encode", "transfer", "total"]
RECIPE = {
    "prompt": "a red circle",
    "negative_prompt": "",
    "size": "64x64",
    "steps": 20,
    "guidance": 2.0,
    "sampler": "euler",
    "seed": 7,
    "image_index": 0,
    "revision": "00ff",
}


async def drawn(models: DrawModels, **fields: Any) -> DrawClient:
    client = DrawClient()
    await draw_door(models).answer(draw_call(**fields), client)
    return client


def test_a_picture_is_sent_and_the_stream_ends_with_one_report() -> None:
    async def scenario() -> None:
        models = DrawModels()
        client = await drawn(models)
        assert client.images == [
            {
                "kind": "image",
                "index": 0,
                "seed": 7,
                "image_index": 0,
                "format": "png",
                "width_px": 64,
                "height_px": 64,
                "settings": RECIPE,
            }
        ]
        assert settings_of(client.files[0]) == RECIPE
        (task,) = models.tasks
        assert np.array_equal(client.pixels(0), pixels_of(latent_of(task)))
        report = client.report
        stages = report.pop("stages_ms")
        assert list(stages) == STAGES
        assert (stages["queue"], stages["denoise"]) == (1.0, 2.0)
        assert report == {
            "finish_reason": "done",
            "usage": {
                "images": 1,
                "text_tokens": 14 + 2,
                "evaluations": 40,
                "branches": 2,
                "latent_tokens": 64,
                "token_passes": 64 * 40,
            },
            "first_preview_ms": None,
            "images": [
                {
                    "index": 0,
                    "seed": 7,
                    "image_index": 0,
                    "finish_reason": "done",
                    "evaluations": 40,
                    "branches": 2,
                    "accelerator_ms": 1.5,
                    "queue_ms": 1.0,
                    "denoise_ms": 2.0,
                }
            ],
        }

    run(scenario())


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp"])
def test_every_format_carries_its_recipe(kind: str) -> None:
    async def scenario() -> None:
        client = await drawn(DrawModels(), format=kind, quality=55, negative_prompt="é")
        assert client.images[0]["format"] == kind
        assert settings_of(client.files[0]) == RECIPE | {"negative_prompt": "é"}

    run(scenario())


def test_every_setting_reaches_the_denoiser() -> None:
    async def scenario() -> None:
        models = DrawModels()
        fields = {"size": "96x64", "steps": 4, "guidance": 7.5, "sampler": "heun", "preview_every": 2}
        await drawn(models, **fields, tenant="t", latency_class="batch", deadline_ms=60_000, negative_prompt="no")
        (task,) = models.tasks
        settings = task.settings
        assert (settings.width_px, settings.height_px, settings.steps, settings.guidance) == (96, 64, 4, 7.5)
        assert (settings.sampler, settings.preview_every, settings.max_previews_per_s) == ("heun", 2, 8.0)
        assert (task.tenant, task.latency_class, task.deadline_s is not None) == ("t", "batch", True)
        assert task.negative is not None
        assert not np.array_equal(task.prompt.states, task.negative.states)

    run(scenario())


def test_pictures_of_one_request_have_noise_of_their_own_and_each_can_be_had_again() -> None:
    async def scenario() -> None:
        together = await drawn(DrawModels(), n=3, first_index=5)
        assert sorted((image["index"], image["image_index"]) for image in together.images) == [(0, 5), (1, 6), (2, 7)]
        assert (together.report["usage"]["images"], together.report["usage"]["evaluations"]) == (3, 120)
        assert [image["index"] for image in together.report["images"]] == [0, 1, 2]
        for index in range(3):
            alone = await drawn(DrawModels(), first_index=5 + index)
            assert np.array_equal(alone.pixels(0), together.pixels(index))
        assert not np.array_equal(together.pixels(0), together.pixels(1))

    run(scenario())


def test_a_seed_left_out_is_chosen_and_told() -> None:
    async def scenario() -> None:
        clients = [await drawn(DrawModels(), seed=None, n=2) for _ in range(8)]
        seeds = [client.images[0]["seed"] for client in clients]
        assert len(set(seeds)) == 8
        assert all(0 <= seed < 2**53 for seed in seeds)
        for client, seed in zip(clients, seeds, strict=True):
            assert {image["settings"]["seed"] for image in client.images} == {seed}
        again = await drawn(DrawModels(), seed=seeds[0])
        first = next(image["index"] for image in clients[0].images if image["image_index"] == 0)
        assert np.array_equal(again.pixels(0), clients[0].pixels(first))

    run(scenario())


def test_pictures_are_sent_as_they_are_done() -> None:
    async def scenario() -> None:
        models, client = DrawModels(), DrawClient()
        models.gates["decode"].clear()
        drawing = asyncio.create_task(draw_door(models).answer(draw_call(n=2, steps=1), client))
        await until(lambda: len(models.decoded) == 2)
        assert (client.images, client.reports) == ([], [])
        models.gates["decode"].set()
        await drawing
        assert len(client.images) == 2

    run(scenario())


@pytest.mark.parametrize(("fields", "branches"), [({"guidance": 1.0}, 1), ({"guidance": 1.5}, 2)])
def test_without_guidance_the_negative_prompt_is_not_encoded_and_steps_cost_half(
    fields: dict[str, Any], branches: int
) -> None:
    async def scenario() -> None:
        models = DrawModels()
        client = await drawn(models, **fields, negative_prompt="no")
        assert len(models.encoded) == branches
        assert (models.tasks[0].negative is None) == (branches == 1)
        usage = client.report["usage"]
        assert (usage["branches"], usage["evaluations"], usage["text_tokens"]) == (
            branches,
            20 * branches,
            14 + (4 if branches == 2 else 0),
        )

    run(scenario())


def test_a_model_with_guidance_inside_has_one_branch_and_no_negative_prompt() -> None:
    async def scenario() -> None:
        models, client = DrawModels(), DrawClient()
        door = draw_door(models, MANIFEST.model_copy(update={"embedded_guidance": True}))
        await door.answer(draw_call(guidance=3.5), client)
        assert (models.tasks[0].negative, models.tasks[0].settings.guidance) == (None, 3.5)
        assert client.report["usage"]["branches"] == 1
        with pytest.raises(InvalidRequest, match="negative_prompt has no effect.*fix: leave it out"):
            await door.answer(draw_call(negative_prompt="blur"), DrawClient())

    run(scenario())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (draw_call(prompt=""), InvalidRequest, ["prompt is empty"]),
        (draw_call(prompt="x" * 19), PromptTooLong, ["prompt has 21 tokens, 2 of them around it", "20 tokens"]),
        (draw_call(negative_prompt="x" * 19), PromptTooLong, ["negative_prompt has 21 tokens"]),
        (draw_call(guidance=1, negative_prompt="x" * 19), PromptTooLong, ["negative_prompt has 21 tokens"]),
        (draw_call(size="63x64"), InvalidRequest, ['size = "63x64"', "[draw] side_multiple_px = 32"]),
        (draw_call(steps=1000), InvalidRequest, ["steps = 1,000", "[draw] max_steps = 100"]),
        (draw_call(sampler="x"), InvalidRequest, ['sampler = "x"']),
        (
            draw_call(steps=100, sampler="heun", n=8),
            MediaTooLarge,
            ["the request to draw needs evaluations = 3,184", "[draw.admission.request] evaluations = 1,600", "steps"],
        ),
        (draw_call(parameters={"steps": 3}), InvalidRequest, ["unknown request parameter steps", "JSON document"]),
        (
            Call(document=b'{"stop": {}}', context=Context(parameters={})),
            InvalidRequest,
            ["stop.request_id is missing"],
        ),
    ],
)
def test_bad_input_is_refused_at_the_door_before_any_model_is_called(
    call: Call, error: type[ProteusError], words: list[str]
) -> None:
    async def scenario() -> None:
        models, client = DrawModels(), DrawClient()
        door = draw_door(models)
        with pytest.raises(error) as caught:
            await door.answer(call, client)
        for word in [*words, "fix: "]:
            assert word in str(caught.value)
        assert (models.encoded, models.tasks, client.reports) == ([], [], [])
        assert is_empty(door)

    run(scenario())


def test_a_jpeg_that_cannot_hold_its_recipe_is_refused_before_anything_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proteus.generation.encode.MAX_EXIF_BYTES", 100)

    async def scenario() -> None:
        models = DrawModels()
        with pytest.raises(InvalidRequest, match="bytes in a JPEG.*fix: shorten the prompt or ask for png"):
            await drawn(models, format="jpeg")
        assert models.encoded == []
        await drawn(models, format="png")

    run(scenario())


@pytest.mark.parametrize("stage", ["condition", "denoise", "decode"])
@pytest.mark.parametrize("error", [Unavailable("dead"), InternalError(), QueueFull("full"), BrokenModel()])
def test_an_error_of_any_stage_ends_its_request_and_gives_everything_back(stage: str, error: ProteusError) -> None:
    async def scenario() -> None:
        models, client = DrawModels(), DrawClient()
        door = draw_door(models)
        models.errors[stage] = error
        with pytest.raises(type(error)):
            await door.answer(draw_call(n=3), client)
        assert (is_empty(door), client.reports) == (True, [])
        models.errors.clear()
        again = DrawClient()
        await door.answer(draw_call(), again)
        assert again.report["finish_reason"] == "done"

    run(scenario())


def test_a_picture_that_fails_stops_the_others_of_its_request_and_nobody_else() -> None:
    async def scenario() -> None:
        models, client, other = DrawModels(), DrawClient(), DrawClient()
        door = draw_door(models)
        models.errors["denoise"] = BrokenModel()
        models.fails = lambda task: task.settings.seed == 7 and task.settings.image_index == 1
        models.gates["step"].clear()
        failing = asyncio.create_task(door.answer(draw_call(n=3), client))
        fine = asyncio.create_task(door.answer(draw_call(seed=8), other))
        await until(lambda: len(models.tasks) == 4)
        models.gates["step"].set()
        with pytest.raises(BrokenModel):
            await failing
        await fine
        stopped = {task.settings.image_index for task in models.tasks if task.request_key in models.stopped}
        assert stopped == {0, 2}
        assert other.report["finish_reason"] == "done"
        assert is_empty(door)

    run(scenario())


def test_reservation_shrinks_as_pictures_end() -> None:
    async def scenario() -> None:
        models, client = DrawModels(), DrawClient()
        door = draw_door(models)
        models.gates["condition"].clear()
        drawing = asyncio.create_task(door.answer(draw_call(n=3, steps=5), client))
        await until(lambda: bool(models.encoded))
        held = door.figures().admission.held
        assert (held["requests"], held["images"], held["evaluations"]) == (1, 3, 30)
        assert (held["text_tokens"], held["token_passes"]) == (16, 30 * 64)
        models.gates["decode"].clear()
        models.gates["condition"].set()
        await until(lambda: len(models.decoded) == 3)
        held = door.figures().admission.held
        assert (held["images"], held["text_tokens"]) == (3, 0), "a picture is held until it is sent"
        models.gates["decode"].set()
        seen = set()
        while not drawing.done():
            held = door.figures().admission.held
            assert held["evaluations"] == 10 * held["images"]
            seen.add(held["images"])
            await asyncio.sleep(0)
        await drawing
        assert len(seen) > 1
        assert is_empty(door)

    run(scenario())


def test_who_waits_for_capacity_is_let_in_by_a_picture_that_ends() -> None:
    async def scenario() -> None:
        models, first, second = DrawModels(), DrawClient(), DrawClient()
        door = draw_door(models, requests=8, queued=4, capacity={"images": 2})
        models.gates["decode"].clear()
        one = asyncio.create_task(door.answer(draw_call(n=2), first))
        await until(lambda: len(models.decoded) == 2)
        two = asyncio.create_task(door.answer(draw_call(seed=9), second))
        await until(lambda: door.figures().admission.queued["media"] == 1)
        models.gates["decode"].set()
        await asyncio.gather(one, two)
        assert second.report["stages_ms"]["admission"] > 0
        with pytest.raises(MediaTooLarge, match=r"images = 3; limit: \[draw.admission.capacity\] images = 2"):
            await door.answer(draw_call(n=3), DrawClient())

    run(scenario())


def test_200_requests_at_once_are_drawn_or_refused_and_none_is_lost() -> None:
    async def scenario() -> None:
        models = DrawModels()
        models.gates["step"].clear()
        door = draw_door(models, requests=20, queued=100)
        clients = [DrawClient() for _ in range(200)]
        calls = [draw_call(seed=seed, steps=2) for seed in range(200)]
        works = [asyncio.create_task(door.answer(*visit)) for visit in zip(calls, clients, strict=True)]
        await until(lambda: sum(work.done() for work in works) == 80)
        models.gates["step"].set()
        results = await asyncio.gather(*works, return_exceptions=True)
        assert sum(isinstance(result, QueueFull) for result in results) == 80
        assert sum(len(client.images) for client in clients) == 120
        assert is_empty(door)

    run(scenario())


def test_a_deadline_is_kept_while_it_waits_and_handed_on() -> None:
    async def scenario() -> None:
        models = DrawModels()
        door = draw_door(models, requests=1, queued=4)
        models.gates["step"].clear()
        first = asyncio.create_task(door.answer(draw_call(), DrawClient()))
        await until(lambda: bool(models.tasks))
        with pytest.raises(DeadlineExceeded):
            await door.answer(draw_call(deadline_ms=20), DrawClient())
        models.gates["step"].set()
        await first

    run(scenario())


def test_figures_count_pictures_their_time_and_previews() -> None:
    async def scenario() -> None:
        models = DrawModels()
        door = draw_door(models)
        await door.answer(draw_call(n=2), DrawClient())
        await door.answer(draw_call(format="webp", preview_every=10), DrawClient())
        figures = door.figures()
        assert figures.values("proteus_draw_images_total") == {"png": 2, "webp": 1}
        seconds = figures.values("proteus_draw_output_seconds_total")
        assert list(seconds) == ["queue", "condition", "denoise", "decode", "encode"]
        assert (round(seconds["queue"], 9), round(seconds["denoise"], 9)) == (0.003, 0.006)
        assert all(value > 0 for value in seconds.values())
        assert figures.values("proteus_draw_admitted_total") == {"media": 2, "batch": 0}
        assert figures.values("proteus_draw_reserved_peak")["images"] == 2

    run(scenario())
