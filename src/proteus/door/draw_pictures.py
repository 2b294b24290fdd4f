"""The pictures of one request, all at once: denoised, with previews, decoded, encoded and sent as each is done.

A picture that is not wanted any more ends before its next step; what it would have become is not decoded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from proteus.admission.ledger import Reservation
from proteus.backend.fleet import Context, DrawFleet
from proteus.door.draw_figures import DrawCounts
from proteus.door.draw_finish import Finishing
from proteus.door.draw_plan import DrawPlan
from proteus.door.draw_previews import Previews
from proteus.door.draw_report import Ended, image_event, preview_event, report
from proteus.door.reply import DrawPiece, DrawReply, Listener, unless
from proteus.door.stopping import Stopping
from proteus.door.together import together
from proteus.errors import InternalError, ProteusError
from proteus.generation.task import DrawEnd, DrawEvent, DrawTask, Floats
from proteus.stages import Stopwatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Studio:
    """What all requests of one door share."""

    fleet: DrawFleet
    finishing: Finishing
    counts: DrawCounts
    preview_places: asyncio.Semaphore


class Pictures:
    """Of one request, which holds `reservation` meanwhile: each picture gives back its part."""

    def __init__(
        self,
        studio: Studio,
        plan: DrawPlan,
        context: Context,
        reservation: Reservation,
        reply: DrawReply,
        watch: Stopwatch,
    ) -> None:
        self._studio, self._plan, self._context = studio, plan, context
        self._reservation, self._reply, self._watch = reservation, reply, watch
        self._stopping = Stopping(studio.fleet.stop)
        self._ended: list[Ended] = []
        self._first_preview_ms: float | None = None

    async def draw(self, tasks: Sequence[DrawTask], listener: Listener) -> bool:
        """Send every picture, then the report; raises the ProteusError of the first that fails.

        Whether all were wanted to the end.
        """
        gone = asyncio.create_task(listener.gone())
        telling = asyncio.create_task(self._stopping.when(gone, [task.request_key for task in tasks]))
        try:
            await together(self._draw(index, task, gone) for index, task in enumerate(tasks))
        finally:
            telling.cancel()
            gone.cancel()
        self._reply.send(DrawPiece(report=report(self._plan, self._ended, self._first_preview_ms, self._watch)))
        return all(picture.sent for picture in self._ended)

    async def _draw(self, index: int, task: DrawTask, gone: asyncio.Task[None]) -> None:
        end, latent = await self._denoise(index, task)
        picture = Ended(index=index, settings=task.settings, end=end)
        if latent is not None:
            picture = await self._finish(picture, latent, gone)
        self._ended.append(picture)
        self._reservation.shrink(self._reservation.vector - self._plan.resources_of_one)
        if picture.sent:
            self._count(picture)
        elif latent is not None:
            self._count_unsent(end)

    async def _denoise(self, index: int, task: DrawTask) -> tuple[DrawEnd, Floats | None]:
        """The picture's account and its latent, if it was not cancelled."""
        previews = Previews(lambda event: self._preview(index, event), self._studio.preview_places, self._studio.counts)
        try:
            async with aclosing(self._studio.fleet.denoise(task, self._context)) as events:
                async for event in events:
                    if event.end is not None:
                        return event.end, event.clean if event.end.reason == "done" else None
                    previews.offer(event)
        except ProteusError:
            raise  # the denoiser ended the picture itself
        except (Exception, asyncio.CancelledError):  # of the connection; of this task, or for another picture's sake
            await self._stopping.tell([task.request_key])
            raise
        finally:
            await previews.close()
        raise InternalError

    async def _preview(self, index: int, event: DrawEvent) -> None:
        if event.clean is None:
            return
        image = await self._studio.finishing.preview(event.clean, self._plan, self._context)
        self._reply.send(DrawPiece(event=preview_event(self._plan, index, event), image=image))
        if self._first_preview_ms is None:
            self._first_preview_ms = self._watch.report_ms()["total"]
            self._studio.counts.first_previews += 1
            self._studio.counts.first_preview_s += self._first_preview_ms / 1e3

    async def _finish(self, picture: Ended, latent: Floats, gone: asyncio.Task[None]) -> Ended:
        """Decode, encode and send, unless nobody waits for it any more."""
        if gone.done():
            return picture
        finishing = self._studio.finishing
        begun_s = time.monotonic()
        pixels = await unless(gone, finishing.pixels(latent, self._context))
        if pixels is None:
            return picture
        decoded_s = time.monotonic()
        file = await finishing.file(pixels, self._plan, picture.settings)
        encoded_s = time.monotonic()
        if gone.done():
            return picture
        self._reply.send(DrawPiece(event=image_event(self._plan, picture.index), image=file))
        return replace(
            picture,
            sent=True,
            decode_ms=(decoded_s - begun_s) * 1e3,
            encode_ms=(encoded_s - decoded_s) * 1e3,
        )

    def _count(self, picture: Ended) -> None:
        counts, end = self._studio.counts, picture.end
        counts.images[self._plan.wish.format] += 1
        seconds = {
            "queue": end.queue_us / 1e6,
            "condition": self._watch.ms("condition") / 1e3,
            "denoise": end.denoise_us / 1e6,
            "decode": picture.decode_ms / 1e3,
            "encode": picture.encode_ms / 1e3,
        }
        for stage, value in seconds.items():
            counts.output_s[stage] += value

    def _count_unsent(self, end: DrawEnd) -> None:
        """Wasted before the request was cancelled; the denoiser counts what it did not finish itself."""
        counts = self._studio.counts
        counts.unsent_images += 1
        counts.unsent_rows += end.evaluations
        counts.unsent_s += end.accelerator_us / 1e6
