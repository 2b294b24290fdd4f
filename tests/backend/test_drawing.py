"""The fleet of `draw` before the port of `denoiser`: what one says in tensors, the other reads, and back."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from proteus.backend.fleet import Context
from proteus.errors import BrokenModel, InternalError, InvalidRequest, QueueFull
from proteus.generation.task import Condition, DrawEmit, DrawEnd, DrawEvent, DrawFailure, DrawTask, Settings
from proteus.manifest import DrawManifest
from tests.backend import triton

ROOM = "proteus.backend"
NAMES = [f"{ROOM}.{name}" for name in ("tensors", "guard", "port", "drawing", "calls", "collector", "draw_models")]
NO_CONTEXT = Context(parameters={})
SETTINGS = Settings(width_px=64, height_px=96, steps=4, guidance=3.0, sampler="euler", seed=7, preview_every=1)
END = DrawEnd(reason="done", queue_us=1, denoise_us=2, evaluations=8, branches=2, accelerator_us=3)
MANIFEST = DrawManifest.model_validate(
    {
        "format": 1,
        "revision": "00ff",
        "family": "sd3",
        "text_inputs": [
            {"tensor": name, "folder": "tokenizer", "tokens": 3, "pad_id": 0} for name in ("input_ids", "input_ids_2")
        ],
        "text_tokens": 3,
        "text_width": 2,
        "pooled_width": 5,
        "latent_channels": 4,
        "vae_factor": 8,
        "size_multiple": 2,
        "prediction": "flow",
        "scheduler": {},
        "embedded_guidance": False,
        "preview": [],
    }
)


class Engine:
    """Keeps its tasks; draws what the test tells it to."""

    def __init__(self) -> None:
        self.taken: list[tuple[DrawTask, DrawEmit]] = []
        self.cancelled: list[bytes] = []
        self.came = threading.Event()
        self.refuses: Exception | None = None

    def submit(self, task: DrawTask, emit: DrawEmit) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.taken.append((task, emit))
        self.came.set()

    def cancel(self, request_key: bytes) -> None:
        self.cancelled.append(request_key)

    def close(self) -> None:
        pass


class World:
    """A port before an engine, and a fleet whose calls arrive there."""

    def __init__(self, port: Any, models: Any) -> None:
        self.engine, self.plain = Engine(), list[dict[str, Any]]()
        self.port = port
        self.fleet = models.TritonDrawFleet(MANIFEST)
        self.outputs: dict[str, Any] = {}
        self.failures: list[Exception] = []  # of the next calls that collect

    def request(self, model_name: str, inputs: Any, requested_output_names: list[str], **_: Any) -> SimpleNamespace:
        given = {tensor.name: tensor.as_numpy() for tensor in inputs}
        if "collect" in given and self.failures:
            raise self.failures.pop()
        if model_name == "denoiser":
            return SimpleNamespace(exec=lambda decoupled: iter([_response(*self.serve(given))]))
        self.plain.append({"model": model_name, "asked": requested_output_names, **given})
        return SimpleNamespace(exec=lambda: _response(self.outputs, ""))

    def serve(self, given: dict[str, Any]) -> tuple[dict[str, Any], str]:
        request = triton.Request(given)
        self.port.serve(request)
        assert request.ended.wait(10)
        return (request.answers or [{}])[0], request.error


def _response(outputs: dict[str, Any], error: str) -> SimpleNamespace:
    def tensor(name: str, array: Any) -> SimpleNamespace:
        return SimpleNamespace(name=lambda: name, as_numpy=lambda: array, is_cpu=lambda: True)

    return SimpleNamespace(
        has_error=lambda: bool(error),
        error=lambda: SimpleNamespace(message=lambda: error),
        output_tensors=lambda: [tensor(name, array) for name, array in outputs.items()],
    )


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    module: Any = triton.module()
    monkeypatch.setitem(sys.modules, triton.MODULE, module)
    rooms = {name: importlib.import_module(name) for name in NAMES}
    port: Any = rooms[f"{ROOM}.port"]
    monkeypatch.setattr(port, "COLLECT_S", 0.01)
    world = World(None, rooms[f"{ROOM}.draw_models"])
    drawing: Any = rooms[f"{ROOM}.drawing"]
    world.port = port.Port(world.engine, drawing.DrawWire())
    module.InferenceRequest = world.request
    yield world
    world.fleet.close()
    world.port.close()
    for name in NAMES:
        del sys.modules[name]


def task(**changes: Any) -> DrawTask:
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    pooled = np.arange(5, dtype=np.float32)
    facts: dict[str, Any] = {
        "request_key": b"k" * 16,
        "prompt": Condition(states=rows, pooled=pooled),
        "negative": Condition(states=-rows, pooled=-pooled),
        "settings": SETTINGS,
        "tenant": "ann",
        "latency_class": "batch",
        **changes,
    }
    return DrawTask(**facts)


def latent(value: float) -> np.ndarray:
    return np.full((4, 12, 8), value, dtype=np.float32)


def test_a_picture_goes_to_the_engine_as_it_was_asked_for_and_its_events_come_back(world: World) -> None:
    async def scenario() -> list[DrawEvent]:
        events = []
        asked = task()
        async with aclosing(world.fleet.denoise(asked, NO_CONTEXT)) as arriving:
            first = asyncio.ensure_future(anext(arriving))
            await asyncio.to_thread(world.engine.came.wait, 10)
            given, emit = world.engine.taken[0]
            assert (given.request_key, given.settings, given.tenant) == (asked.request_key, asked.settings, "ann")
            assert (given.latency_class, given.deadline_s) == ("batch", None)
            for one, other in ((given.prompt, asked.prompt), (given.negative, asked.negative)):
                assert one is not None and other is not None
                assert np.array_equal(one.states, other.states)
                assert one.pooled is not None and np.array_equal(one.pooled, other.pooled)
            emit(DrawEvent(step=1, steps=4, clean=latent(1.0)))
            events.append(await first)
            emit(DrawEvent(step=4, steps=4, clean=latent(4.0), end=END))
            events += [event async for event in arriving]
        return events

    preview, last = asyncio.run(asyncio.wait_for(scenario(), 20))
    assert (preview.step, preview.end, last.end) == (1, None, END)
    assert np.array_equal(preview.clean, latent(1.0)) and np.array_equal(last.clean, latent(4.0))


def test_a_door_that_comes_late_is_given_the_latest_preview_only(world: World) -> None:
    async def scenario() -> DrawEvent:
        async with aclosing(world.fleet.denoise(task(), NO_CONTEXT)) as arriving:
            first = asyncio.ensure_future(anext(arriving))
            await asyncio.to_thread(world.engine.came.wait, 10)
            _, emit = world.engine.taken[0]
            emit(DrawEvent(step=1, steps=4, clean=latent(1.0)))
            await first
            world.engine.came.clear()
            for step in (2, 3):
                emit(DrawEvent(step=step, steps=4, clean=latent(step)))
            while len(world.fleet._denoiser._open[b"k" * 16]._queue) < 2:
                await asyncio.sleep(0.001)
            return await anext(arriving)

    assert asyncio.run(asyncio.wait_for(scenario(), 20)).step == 3


@pytest.mark.parametrize("refused", [True, False])
def test_a_picture_that_fails_is_told_with_the_kind_and_text_of_its_error(world: World, refused: bool) -> None:
    error = QueueFull("144 pictures are there", limit="[denoiser] max_queue = 128") if refused else BrokenModel()

    async def scenario() -> None:
        if refused:
            world.engine.refuses = error
        async with aclosing(world.fleet.denoise(task(), NO_CONTEXT)) as arriving:
            first = asyncio.ensure_future(anext(arriving))
            if not refused:
                await asyncio.to_thread(world.engine.came.wait, 10)
                world.engine.taken[0][1](DrawFailure(error))
            await first

    with pytest.raises(type(error)) as caught:
        asyncio.run(asyncio.wait_for(scenario(), 20))
    assert str(caught.value) == str(error)


@pytest.mark.parametrize("failure", [RuntimeError("can't start new thread"), KeyError("events")])
def test_a_collection_that_fails_ends_its_pictures_and_the_next_ones_are_collected(
    world: World, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    monkeypatch.setattr(sys.modules[f"{ROOM}.collector"], "RETRY_S", 0.0)
    world.failures.append(failure)

    async def scenario() -> DrawEvent:
        with pytest.raises(InternalError):
            async with aclosing(world.fleet.denoise(task(), NO_CONTEXT)) as arriving:
                await anext(arriving)
        world.engine.came.clear()
        async with aclosing(world.fleet.denoise(task(request_key=b"n" * 16), NO_CONTEXT)) as arriving:
            first = asyncio.ensure_future(anext(arriving))
            await asyncio.to_thread(world.engine.came.wait, 10)
            world.engine.taken[-1][1](DrawEvent(step=4, steps=4, clean=latent(4.0), end=END))
            return await first

    assert asyncio.run(asyncio.wait_for(scenario(), 5)).end == END
    assert world.engine.cancelled == [b"k" * 16], "the model would have gone on with it"


def test_a_stop_arrives_at_the_engine(world: World) -> None:
    asyncio.run(world.fleet.stop(b"s" * 16))
    assert world.engine.cancelled == [b"s" * 16]


def test_text_is_encoded_from_all_its_ids_and_only_what_the_checkpoint_has_is_asked_for(world: World) -> None:
    world.outputs = {
        "text_states": np.ones((1, 3, 2), dtype=np.float32),
        "pooled": np.ones((1, 5), dtype=np.float32),
        "cache_key_echo": np.frombuffer(b"e" * 32, dtype=np.uint8)[None],
    }
    ids = {name: np.array([1, 2, 3], dtype=np.int64) for name in ("input_ids", "input_ids_2")}
    encoded = asyncio.run(world.fleet.condition(ids, b"k" * 32, NO_CONTEXT))
    assert (encoded.condition.states.shape, encoded.key_echo) == ((3, 2), b"e" * 32)
    assert encoded.condition.pooled is not None and encoded.condition.pooled.shape == (5,)
    (call,) = world.plain
    assert call["asked"] == ["text_states", "pooled", "cache_key_echo"]
    assert (call["input_ids"].shape, call["cache_key"].tobytes()) == ((1, 3), b"k" * 32)


def test_latents_are_decoded_one_picture_a_call(world: World) -> None:
    world.outputs = {"pixels": np.zeros((1, 96, 64, 3), dtype=np.uint8)}
    pixels = asyncio.run(world.fleet.decode(latent(0.5)[:, ::-1], NO_CONTEXT))
    assert pixels.shape == (96, 64, 3)
    assert world.plain[0]["latents"].shape == (1, 4, 12, 8)
    assert world.plain[0]["latents"].flags.c_contiguous


def direct(**inputs: Any) -> dict[str, Any]:
    document = {"width_px": 64, "height_px": 96, "steps": 4, "guidance": 1.0, "sampler": "euler", "seed": 1}
    given = {"text_states": np.zeros((3, 2), dtype=np.float32), "settings": json.dumps(document).encode(), **inputs}
    return {
        name: np.frombuffer(value, dtype=np.uint8) if isinstance(value, bytes) else value
        for name, value in given.items()
        if value is not None
    }


def test_who_asks_without_a_mailbox_gets_a_response_for_each_event(world: World) -> None:
    request = triton.Request(direct())
    world.port.serve(request)
    given, emit = world.engine.taken[0]
    assert (given.negative, given.latency_class, len(given.request_key)) == (None, "media", 16)
    emit(DrawEvent(step=2, steps=4, clean=latent(2.0)))
    emit(DrawEvent(step=4, steps=4, clean=latent(4.0), end=END))
    assert request.ended.is_set()
    preview, last = request.answers
    assert (preview["step"].tolist(), "end" in preview) == ([2], False)
    assert json.loads(last["end"].tobytes())["evaluations"] == 8
    assert np.array_equal(last["latents"], latent(4.0))


def test_a_cancelled_picture_ends_without_latents(world: World) -> None:
    request = triton.Request(direct())
    world.port.serve(request)
    cancelled = DrawEnd(reason="cancelled", queue_us=1, denoise_us=0, evaluations=0, branches=1, accelerator_us=0)
    world.engine.taken[0][1](DrawEvent(step=0, steps=4, clean=None, end=cancelled))
    assert [sorted(answer) for answer in request.answers] == [["end", "step"]]


def test_a_client_that_left_cancels_its_picture_before_any_event(world: World) -> None:
    """Without previews there is none until the picture is done."""
    staying, leaving = (triton.Request(direct(request_key=key * 16)) for key in (b"s", b"l"))
    for request in (staying, leaving):
        world.port.serve(request)
    leaving.cancelled = True
    world.port.look()
    assert world.engine.cancelled == [b"l" * 16]
    cancelled = DrawEnd(reason="cancelled", queue_us=1, denoise_us=0, evaluations=0, branches=1, accelerator_us=0)
    for _, emit in world.engine.taken:
        emit(DrawEvent(step=0, steps=4, clean=None, end=cancelled))
    staying.cancelled = True
    world.port.look()
    assert world.engine.cancelled == [b"l" * 16], "Triton frees what it would look at with the last response"


def test_an_event_that_cannot_be_sent_ends_its_request_and_nothing_of_it_is_kept(world: World) -> None:
    """As when Triton's shared memory is full; the engine cancels a picture whose emit raises, and tells no more."""
    request = triton.Request(direct())
    send = request.send

    def full(response: Any = None, flags: int = 0) -> None:
        if isinstance(response, dict):
            raise RuntimeError("Failed to increase the shared memory pool size")
        send(response, flags)

    request.send = full  # type: ignore[method-assign]
    world.port.serve(request)
    with pytest.raises(RuntimeError):
        world.engine.taken[0][1](DrawEvent(step=2, steps=4, clean=latent(2.0)))
    assert request.ended.is_set() and request.error.startswith("internal: ")
    assert "memory" not in request.error
    request.cancelled = True
    world.port.look()
    assert world.engine.cancelled == [], "it is still looked after"


def test_a_picture_that_was_refused_is_not_looked_after(world: World) -> None:
    world.engine.refuses = QueueFull("full")
    request = triton.Request(direct())
    world.port.serve(request)
    assert request.error.startswith("queue_full: full")
    request.cancelled = True
    world.port.look()
    assert world.engine.cancelled == []


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"text_states": None}, "text_states are missing"),
        ({"settings": None}, "settings are missing; fix: send width_px"),
        ({"settings": b"{"}, "settings is not JSON"),
        ({"scheduling": b'{"deadline_ms": 0}'}, "scheduling.deadline_ms = 0"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(world: World, inputs: dict[str, Any], words: str) -> None:
    request = triton.Request(direct(**inputs))
    world.port.serve(request)
    assert request.ended.is_set()
    assert request.error.startswith(f"{InvalidRequest.code}: ") and words in request.error
