"""Texts are encoded once at a time for all who share a cache scope, and an answer made for another key is not taken."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from proteus.errors import BrokenModel, InternalError
from tests.door.draw_models import DrawClient, DrawModels, draw_call, draw_door, is_empty, run, until


def test_requests_at_once_share_the_prompt_and_the_empty_negative() -> None:
    async def scenario() -> None:
        models = DrawModels()
        models.gates["condition"].clear()
        door = draw_door(models)
        clients = [DrawClient() for _ in range(6)]
        calls = [draw_call(prompt="a" if at % 2 else "b", seed=at) for at in range(6)]
        tasks = [asyncio.create_task(door.answer(call, client)) for call, client in zip(calls, clients, strict=True)]
        await until(lambda: len(models.encoded) == 3)
        await asyncio.sleep(0.1)
        models.gates["condition"].set()
        await asyncio.gather(*tasks)
        assert len(models.encoded) == 3, "two prompts and the negative of everybody"
        await door.answer(draw_call(prompt="a"), DrawClient())
        assert len(models.encoded) == 5, "to keep results is the response cache's job"
        assert models.encoded[3][1] in {key for _, key in models.encoded[:3]}

    run(scenario())


def test_scopes_share_nothing() -> None:
    async def scenario() -> None:
        models = DrawModels()
        door = draw_door(models)
        for scope in ("", "a", "b"):
            await door.answer(draw_call(cache_scope=scope), DrawClient())
        assert len({key for _, key in models.encoded}) == 6
        assert len({tuple(ids) for ids, _ in models.encoded}) == 2

    run(scenario())


def test_prompt_and_negative_are_not_mixed_up() -> None:
    async def scenario() -> None:
        models = DrawModels()
        await draw_door(models).answer(draw_call(prompt="ab", negative_prompt="c"), DrawClient())
        (task,) = models.tasks
        assert task.negative is not None
        assert task.prompt.states[:4, 0].tolist() == [1, ord("a"), ord("b"), 2]
        assert task.negative.states[:3, 0].tolist() == [1, ord("c"), 2]

    run(scenario())


def test_a_prompt_equal_to_the_negative_is_encoded_once() -> None:
    async def scenario() -> None:
        models = DrawModels()
        models.gates["condition"].clear()
        drawing = asyncio.create_task(
            draw_door(models).answer(draw_call(prompt="a", negative_prompt="a"), DrawClient())
        )
        await until(lambda: bool(models.encoded))
        models.gates["condition"].set()
        await drawing
        assert len(models.encoded) == 1
        assert models.tasks[0].negative is not None
        assert np.array_equal(models.tasks[0].negative.states, models.tasks[0].prompt.states)

    run(scenario())


def test_a_collision_of_the_cache_is_seen_and_the_text_encoded_under_another_key() -> None:
    async def scenario() -> None:
        models = DrawModels()
        models.collisions = 1
        await draw_door(models).answer(draw_call(guidance=1), DrawClient())
        (ids, key), (ids_again, other_key) = models.encoded
        assert ids == ids_again
        assert key != other_key

    run(scenario())


def test_two_collisions_in_a_row_are_no_chance() -> None:
    async def scenario() -> None:
        models = DrawModels()
        models.collisions = 2
        door = draw_door(models)
        with pytest.raises(InternalError):
            await door.answer(draw_call(guidance=1), DrawClient())
        assert is_empty(door)

    run(scenario())


@pytest.mark.parametrize("fields", [{"prompt": "100 %"}, {"negative_prompt": "%"}])
def test_a_text_whose_states_are_not_finite_ends_its_request_before_the_denoiser(fields: dict[str, str]) -> None:
    async def scenario() -> None:
        models = DrawModels()
        door = draw_door(models)
        with pytest.raises(BrokenModel, match="the text encoder's output is not finite; fix: change the prompt"):
            await door.answer(draw_call(**fields), DrawClient())
        assert models.tasks == []
        assert is_empty(door)

    run(scenario())


def test_a_leader_that_leaves_does_not_take_the_others_with_it() -> None:
    async def scenario() -> None:
        models = DrawModels()
        models.gates["condition"].clear()
        door = draw_door(models)
        leader, other = DrawClient(), DrawClient()
        first = asyncio.create_task(door.answer(draw_call(guidance=1), leader))
        await until(lambda: bool(models.encoded))
        second = asyncio.create_task(door.answer(draw_call(guidance=1, seed=8), other))
        await until(lambda: door.figures().admission.admitted["media"] == 2)
        leader.gone = True
        await first
        models.gates["condition"].set()
        await second
        assert leader.report["finish_reason"] == "cancelled"
        assert other.report["finish_reason"] == "done"

    run(scenario())
