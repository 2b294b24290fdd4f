"""Pictures made unrecognisable: a dozen colours of each, spread over a small picture of the same shape.

A client's picture is decoded in a process that may die, which is started when it is first needed; a drawn one is ours.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from proteus.client.drawing import Drawn
from proteus.deployment import Deployment
from proteus.errors import InvalidPicture, Unavailable
from proteus.generation.encode import encode, settings_of
from proteus.limits import DrawnFormat
from proteus.media.header import PictureHeader
from proteus.preprocess.pool import Worker, WorkerFailed, interpreter
from proteus.preprocess.wire import Size

COARSE_PX, COARSER = 12, 8  # the longer side that is kept, and at most such a part of it
SHOWN_PX = 256  # the longer side of what takes a client's picture's place
KINDS: tuple[DrawnFormat, ...] = ("png", "jpeg", "webp")  # the first that the contract reads
DRAWN_QUALITY = 90
Done = TypeVar("Done")


class Blurring:
    """For one event loop."""

    def __init__(self, deployment: Deployment) -> None:
        self._limits, self._image = deployment.decode, deployment.image
        self._command = [interpreter(), "-P", "-m", "proteus.gateway.moderation.worker", str(deployment.path)]
        self._worker: Worker | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="blur")

    async def of_upload(self, data: bytes, header: PictureHeader) -> bytes:
        """A small picture; raises InvalidPicture, MediaTooLarge, or Unavailable while the process does not start."""
        return await self._in_thread(lambda: self._upload(data, header))

    async def of_drawn(self, picture: Drawn) -> bytes:
        """A file of the same kind and size, with the settings that the picture carried."""
        return await self._in_thread(lambda: _drawn(picture))

    async def close(self) -> None:
        if self._worker is not None:
            self._worker.process.kill()  # what the thread waits for ends with it
        await self._in_thread(self._end)
        self._thread.shutdown()

    async def _in_thread(self, work: Callable[[], Done]) -> Done:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _upload(self, data: bytes, header: PictureHeader) -> bytes:
        width_px, height_px = header.upright_px
        coarse_px = coarse(header.upright_px)
        colours = self._colours(data, coarse_px)
        least = self._image.min_side_px / min(width_px, height_px)
        scale = min(1.0, max(SHOWN_PX / max(width_px, height_px), least))
        file = io.BytesIO()
        shown_px = (max(1, round(width_px * scale)), max(1, round(height_px * scale)))
        _spread(colours, shown_px).save(file, next((kind for kind in KINDS if kind in self._image.formats), KINDS[0]))
        return file.getvalue()

    def _colours(self, data: bytes, size_px: Size) -> npt.NDArray[np.uint8]:
        worker = self._worker or self._start()
        try:
            pixels = worker.decode(data, size_px, (size_px[1], size_px[0], 3), self._limits)
        except WorkerFailed as failed:
            self._end()
            raise failed.error from failed
        return np.nan_to_num(pixels, nan=0.0, posinf=0.0, neginf=0.0).clip(0, 255).astype(np.uint8)

    def _start(self) -> Worker:
        self._worker = worker = Worker.start(self._command)
        try:
            worker.wait_until_ready()
        except (OSError, EOFError) as error:
            self._end()
            raise Unavailable("the process that blurs pictures did not start", fix="try again later") from error
        return worker

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None


def coarse(size_px: Size) -> Size:
    """The size in which nothing can be recognised, of the same shape."""
    longer_px = max(size_px)
    scale = min(COARSE_PX, longer_px // COARSER) / longer_px
    return max(1, round(size_px[0] * scale)), max(1, round(size_px[1] * scale))


def _spread(colours: npt.NDArray[np.uint8], size_px: Size) -> Image.Image:
    return Image.fromarray(colours).resize(size_px, Image.Resampling.BICUBIC)


def _drawn(picture: Drawn) -> bytes:
    size_px, kind = (picture.width_px, picture.height_px), _kind(picture.format)
    with Image.open(io.BytesIO(picture.data), formats=(kind.upper(),)) as opened:
        colours = np.asarray(opened.convert("RGB").resize(coarse(size_px), Image.Resampling.BOX))
    try:
        settings = settings_of(picture.data)
    except InvalidPicture:
        settings = None
    return encode(np.asarray(_spread(colours, size_px)), kind, quality=DRAWN_QUALITY, settings=settings)


def _kind(name: str) -> DrawnFormat:
    match name:
        case "png" | "jpeg" | "webp":
            return name
    raise Unavailable(f"the server drew a picture of format {name!a}", fix="ask for another format")
