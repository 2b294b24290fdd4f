"""The models behind the door of `draw`, with numbers that can be known beforehand; the test decides what goes wrong."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from proteus.backend.fleet import Context, EncodedText
from proteus.deployment import Drawing, Stage
from proteus.door.arrival import Call
from proteus.door.draw import Draw
from proteus.door.draw_text import PromptTokenizer
from proteus.door.reply import DrawPiece
from proteus.errors import ProteusError
from proteus.generation.noise import noise
from proteus.generation.task import Condition, DrawEnd, DrawEvent, DrawTask, Floats
from proteus.language.tokenizer import DisarmedTokenizer
from proteus.limits import Denoiser, DrawLimits
from proteus.manifest import DrawManifest, TextInput
from tests.door.test_draw_request import DEMO

CHANNELS, FACTOR, TOKENS = 4, 8, 20
MANIFEST = DrawManifest(
    format=1,
    revision="00ff",
    family="unet",
    text_inputs=[TextInput(tensor="input_ids", folder="tokenizer", tokens=TOKENS, pad_id=0)],
    text_tokens=TOKENS,
    text_width=3,
    pooled_width=0,
    latent_channels=CHANNELS,
    vae_factor=FACTOR,
    size_multiple=2,
    prediction="epsilon",
    scheduler={},
    embedded_guidance=False,
    preview=[[0.1, 0.0, 0.0], [0.0, 0.1, 0.0], [0.0, 0.0, 0.1], [0.1, 0.1, 0.1], [0.5, 0.5, 0.5]],
)
STAGE = Stage(instances=1, max_batch=8, max_queue_delay_us=0, max_queue=64)
END_US = {"queue_us": 1000, "denoise_us": 2000, "accelerator_us": 1500}


class Letters(DisarmedTokenizer):
    """A tokenizer whose ids are the letters of a text, between a begin and an end."""

    def __init__(self) -> None:
        self.control = ()

    def encode(self, armed: str, *, add_special_tokens: bool) -> list[int]:
        return [1, *(ord(letter) for letter in armed.strip()), 2]


class DrawModels:
    """Latents are the noise of their picture plus its text; a step takes `step_s`, or a turn of the event loop."""

    def __init__(self) -> None:
        self.encoded: list[tuple[list[int], bytes]] = []  # ids, key
        self.tasks: list[DrawTask] = []
        self.stopped: list[bytes] = []
        self.decoded: list[Floats] = []
        self.text_width = MANIFEST.text_width
        self.step_s = 0.0
        self.pace: Callable[[int], Awaitable[None]] = lambda _: asyncio.sleep(0)  # after a preview of that step
        self.collisions = 0
        self.errors: dict[str, ProteusError] = {}  # by method; of `decode`, of the next one only
        self.gates = {name: asyncio.Event() for name in ("condition", "step", "decode")}
        for gate in self.gates.values():
            gate.set()
        self.fails: Callable[[DrawTask], bool] = lambda _: True

    async def condition(self, ids: Mapping[str, npt.NDArray[np.int64]], key: bytes, context: Context) -> EncodedText:
        self.encoded.append((ids["input_ids"].tolist(), key))
        await self.gates["condition"].wait()
        if (error := self.errors.get("condition")) is not None:
            raise error
        states = np.repeat(ids["input_ids"][:, None], self.text_width, axis=1).astype(np.float32)
        echo = key
        if self.collisions > 0:
            self.collisions -= 1
            echo = bytes(32)
        states[ids["input_ids"] == ord("%")] = np.nan
        return EncodedText(condition=Condition(states=states), key_echo=echo)

    async def denoise(self, task: DrawTask, context: Context) -> AsyncGenerator[DrawEvent, None]:
        self.tasks.append(task)
        settings = task.settings
        branches = 1 if task.negative is None else 2
        latent = latent_of(task)
        for step in range(1, settings.steps + 1):
            while not self.gates["step"].is_set() and task.request_key not in self.stopped:
                await asyncio.sleep(0)
            await asyncio.sleep(self.step_s)
            if task.request_key in self.stopped:
                end = DrawEnd(reason="cancelled", evaluations=(step - 1) * branches, branches=branches, **END_US)
                yield DrawEvent(step=step - 1, steps=settings.steps, clean=None, end=end)
                return
            if (error := self.errors.get("denoise")) is not None and self.fails(task):
                raise error
            if step == settings.steps:
                end = DrawEnd(reason="done", evaluations=step * branches, branches=branches, **END_US)
                yield DrawEvent(step=step, steps=step, clean=latent, end=end)
            elif settings.preview_every and step % settings.preview_every == 0:
                yield DrawEvent(step=step, steps=settings.steps, clean=latent * np.float32(step / settings.steps))
                await self.pace(step)

    async def stop(self, request_key: bytes) -> None:
        self.stopped.append(request_key)

    async def decode(self, latents: Floats, context: Context) -> npt.NDArray[np.uint8]:
        self.decoded.append(latents)
        await self.gates["decode"].wait()
        if (error := self.errors.pop("decode", None)) is not None:
            raise error
        return pixels_of(latents)


class DrawClient:
    """Keeps what it is sent; leaves when told."""

    def __init__(self) -> None:
        self.previews: list[dict[str, Any]] = []
        self.images: list[dict[str, Any]] = []
        self.files: list[bytes] = []  # of the images
        self.preview_files: list[bytes] = []
        self.reports: list[dict[str, Any]] = []
        self.gone = False

    def send(self, piece: DrawPiece) -> None:
        assert not self.reports, "a piece after the report"
        if piece.event is not None:
            event = json.loads(piece.event)
            assert event["index"] not in {image["index"] for image in self.images}, "an event after the picture"
            assert piece.image is not None
            assert pixels_in(piece.image).shape == (event["height_px"], event["width_px"], 3)
            events, files = {
                "preview": (self.previews, self.preview_files),
                "image": (self.images, self.files),
            }[event["kind"]]
            events.append(event)
            files.append(piece.image)
        if piece.report is not None:
            self.reports.append(json.loads(piece.report))

    def is_cancelled(self) -> bool:
        return self.gone

    @property
    def report(self) -> dict[str, Any]:
        (report,) = self.reports
        return report

    def pixels(self, index: int) -> npt.NDArray[np.uint8]:
        """Of the picture with that index in its request."""
        (at,) = [at for at, image in enumerate(self.images) if image["index"] == index]
        return pixels_in(self.files[at])


def pixels_in(file: bytes) -> npt.NDArray[np.uint8]:
    with Image.open(io.BytesIO(file)) as image:
        return np.asarray(image)


def latent_of(task: DrawTask) -> Floats:
    settings = task.settings
    shape = CHANNELS, settings.height_px // FACTOR, settings.width_px // FACTOR
    return noise(settings.seed, settings.image_index, 0, shape) + np.float32(task.prompt.states.mean() / 1000)


def pixels_of(latents: Floats) -> npt.NDArray[np.uint8]:
    values = (latents[:3].transpose(1, 2, 0) * 60 + 128).clip(0, 255).astype(np.uint8)
    return values.repeat(FACTOR, axis=0).repeat(FACTOR, axis=1)


def draw_door(models: DrawModels, manifest: DrawManifest = MANIFEST, **admission: Any) -> Draw:
    """With `admission` other than the demo's: `requests` at once, `queued` of each class, `capacity` besides."""
    limits = DEMO
    if admission:
        queue = {"max_queue": admission["queued"], "weight": 1}
        table = {
            "capacity": {"requests": admission["requests"], **admission.get("capacity", {})},
            "request": {},
            "queues": {"media": queue, "batch": queue},
            "max_open_bytes": 10**9,
            "max_wait_ms": 10_000,
        }
        limits = DrawLimits.model_validate(DEMO.model_dump(exclude={"admission"}) | {"admission": table})
    drawing = Drawing(
        checkpoint_path=Path("nowhere"),
        limits=limits,
        denoiser=Denoiser(max_rows=16, live_images=16, max_queue=128, aging_ms=500, threads=1),
        text_encoder=STAGE,
        vae_decoder=STAGE,
        response_cache=True,
    )
    return Draw(drawing, manifest, PromptTokenizer(manifest.text_inputs, [Letters()]), models, threads=2)


def draw_call(parameters: dict[str, Any] | None = None, **fields: Any) -> Call:
    document = json.dumps({"prompt": "a red circle", "seed": 7, **fields}).encode()
    return Call(document=document, context=Context(parameters=parameters or {}))


def is_empty(draw: Draw) -> bool:
    seen = draw.figures().admission
    return not any(seen.held.values()) and not any(seen.queued.values())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 30))
