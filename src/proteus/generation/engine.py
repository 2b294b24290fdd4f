"""The denoiser's engine: pictures at different steps, with different settings, in the same calls of one graph.

One thread does everything but `submit` and `cancel`; its loop is `_loop`. Who shares a call is the step batch's choice;
what a prediction makes of a latent, the sampler's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from proteus.cost.draw import LatentGrid
from proteus.errors import InternalError, ProteusError, Unavailable
from proteus.generation.bucket import Drawing
from proteus.generation.counts import Counts
from proteus.generation.denoisers import ON_CPU, Placement, open_denoiser
from proteus.generation.figures import DrawFigures
from proteus.generation.fit import Fit
from proteus.generation.guidance import branches
from proteus.generation.live_picture import LivePicture
from proteus.generation.noise import INITIAL, noise
from proteus.generation.samplers import Sampler, Trajectory
from proteus.generation.schedule import MAX_KEPT_GRIDS, NoiseSchedule
from proteus.generation.step_batch import StepBatch, Turn
from proteus.generation.task import DrawEmit, DrawEvent, DrawFailure, DrawTask, Floats, Settings
from proteus.limits import Denoiser
from proteus.manifest import DrawManifest

log = logging.getLogger(__name__)
Outcome = tuple[LivePicture, DrawEvent | DrawFailure]


class DenoiseEngine:
    """`folder` holds denoiser.onnx, .pt2 or .plan; `manifest` is what its exporter wrote."""

    def __init__(self, folder: Path, manifest: DrawManifest, limits: Denoiser, placement: Placement = ON_CPU) -> None:
        self._manifest, self._max_rows = manifest, limits.max_rows
        self._fit = Fit(manifest)
        self._patch = LatentGrid.from_manifest(manifest).patch
        self._schedule = NoiseSchedule.of(manifest)
        self._sampler_on = lru_cache(MAX_KEPT_GRIDS)(Sampler)
        self._denoiser = open_denoiser(folder, manifest, limits, placement)
        self._counts = Counts()
        self._lock = threading.RLock()  # guards all below
        self._changed = threading.Condition(self._lock)
        self._batch = StepBatch(limits)
        self._live: dict[Drawing, LivePicture] = {}
        self._closed = False
        self._num_iterations = 0
        self._thread = threading.Thread(target=self._run, name="denoiser", daemon=True)
        self._thread.start()

    def submit(self, task: DrawTask, emit: DrawEmit) -> None:
        """As in DrawEngine."""
        self._fit.check(task)
        picture = LivePicture(
            task,
            emit,
            trajectory=self._start(task.settings),
            size=self._fit.size_of(task.settings),
            num_branches=branches(task.settings.guidance, self._manifest.embedded_guidance),
        )
        with self._lock:
            if self._closed:
                raise Unavailable("the denoiser is stopping", fix="try again in some seconds")
            self._batch.submit(picture.drawing, time.monotonic())
            self._live[picture.drawing] = picture
            self._changed.notify()

    def cancel(self, request_key: bytes) -> None:
        """As in DrawEngine."""
        with self._lock:
            self._batch.cancel(request_key)

    def close(self) -> None:
        """As in DrawEngine; returns when the thread has ended."""
        with self._lock:
            self._closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def num_in_flight(self) -> int:
        """Pictures that take turns or wait."""
        with self._lock:
            return self._batch.num_in_flight

    @property
    def num_iterations(self) -> int:
        """Since the start: as long as something is in flight, it grows."""
        return self._num_iterations

    @property
    def is_alive(self) -> bool:
        """Whether the loop goes on; it ends by `close`, or by a failure that was not a picture's own."""
        return self._thread.is_alive()

    def figures(self) -> DrawFigures:
        """For metrics, at this moment."""
        with self._lock:
            return DrawFigures(live=self._batch.num_live, waiting=self._batch.num_waiting(), counts=self._counts.copy())

    def check(self) -> None:
        """Raises RuntimeError when places, queues and pictures in flight do not add up."""
        with self._lock:
            self._batch.check()
            if len(self._live) != self._batch.num_in_flight:
                raise RuntimeError(f"{len(self._live)} pictures, {self._batch.num_in_flight} in flight")

    def _start(self, settings: Settings) -> Trajectory:
        height, width = self._fit.size_of(settings)
        tokens = height * width // self._patch**2
        sampler = self._sampler_on(self._schedule.grid(settings.steps, settings.sampler, tokens))
        shape = (self._manifest.latent_channels, height, width)
        return sampler.start(noise(settings.seed, settings.image_index, INITIAL, shape))

    def _run(self) -> None:
        try:
            with np.errstate(all="ignore"):  # what is not finite ends its picture, and is told in the log once
                self._loop()
        except Exception:
            log.exception("the engine's loop ended")
        finally:
            with self._lock:
                self._closed = True
                self._batch.end_all()
                left = list(self._live.values())
                self._live.clear()
                for picture in left:
                    self._counts.ended(Unavailable.code, picture.spent)
            for picture in left:
                picture.send(DrawFailure(Unavailable("the denoiser stopped", fix="try again in some seconds")))

    def _loop(self) -> None:
        while (turn := self._next()) is not None:
            self._num_iterations += 1
            if turn.call:
                pictures = [self._live[drawing] for drawing in turn.call]
                predictions = self._evaluate(pictures)
                if predictions is not None:
                    self._tell(self._advance(pictures, predictions))
                    self._preview(pictures)

    def _next(self) -> Turn | None:
        """Waits for work, and ends who is to end before it; None: closed."""
        with self._lock:
            while not self._closed and not self._batch.num_in_flight:
                self._changed.wait()
            if self._closed:
                return None
            turn = self._batch.next(time.monotonic())
            ended = self._ended_by(turn) if turn.cancelled or turn.refused else ()
        self._tell(ended)
        return turn

    def _ended_by(self, turn: Turn) -> Sequence[Outcome]:
        outcomes: list[Outcome] = []
        for drawing in turn.cancelled:
            picture = self._forget(drawing, "cancelled")
            outcomes.append((picture, picture.cancelled()))
        for drawing, error in turn.refused:
            outcomes.append((self._forget(drawing, error.code), DrawFailure(error)))
        return outcomes

    def _evaluate(self, pictures: Sequence[LivePicture]) -> Floats | None:
        """One evaluation for each, all in one call; None where it failed, and they with it."""
        num_rows = sum(picture.drawing.rows for picture in pictures)
        try:
            rows = self._denoiser.rows(pictures[0].drawing.size, num_rows)
            first = 0
            for picture in pictures:
                picture.write(rows, first)
                first += picture.drawing.rows
            begin_ns = time.monotonic_ns()
            predictions = self._denoiser.run(rows)
        except Exception:
            log.exception("a call of the denoiser failed")
            with self._lock:
                outcomes = [(picture, self._failed(picture, InternalError())) for picture in pictures]
            self._tell(outcomes)
            return None
        end_ns = time.monotonic_ns()
        with self._lock:
            self._counts.note_call(
                pictures[0].size_name,
                (end_ns - begin_ns) * 1e-9,
                rows=num_rows,
                padded=rows.num_padded,
                room=self._max_rows,
            )
            for picture in pictures:
                picture.note_call(begin_ns, end_ns, rows=num_rows)
        return predictions

    def _advance(self, pictures: Sequence[LivePicture], predictions: Floats) -> Sequence[Outcome]:
        """The step of each; who has had its last one is out of everything before its client hears of it."""
        outcomes: list[Outcome] = []
        going: list[Drawing] = []
        first = 0
        with self._lock:
            for picture in pictures:
                drawing = picture.drawing
                own = predictions[first : first + drawing.rows]
                first += drawing.rows
                event = None if drawing.is_cancelled else self._advanced(picture, own)
                if event is None:
                    going.append(drawing)
                else:
                    outcomes.append((picture, event))
            self._batch.stepped(going, time.monotonic())
        return outcomes

    def _advanced(self, picture: LivePicture, own: Floats) -> DrawEvent | DrawFailure | None:
        """None: it goes on."""
        try:
            picture.advance(own)
        except ProteusError as error:
            return self._failed(picture, error)
        except Exception:
            log.exception("a step could not be made of a prediction")
            return self._failed(picture, InternalError())
        if not picture.is_done:
            return None
        self._end(picture, "done")
        return picture.done()

    def _preview(self, pictures: Sequence[LivePicture]) -> None:
        for picture in pictures:
            begin_ns, drawing = time.monotonic_ns(), picture.drawing
            if drawing.is_cancelled or drawing not in self._live:
                continue
            if (event := picture.preview(begin_ns)) is not None:
                self._tell([(picture, event)])
                self._counts.note_preview((time.monotonic_ns() - begin_ns) * 1e-9)

    def _failed(self, picture: LivePicture, error: ProteusError) -> DrawFailure:
        self._end(picture, error.code)
        return DrawFailure(error)

    def _tell(self, outcomes: Sequence[Outcome]) -> None:
        """Whoever does not take it is ended; without the lock, for a client may ask the engine something."""
        for picture, event in outcomes:
            if not picture.send(event):
                with self._lock:
                    if picture.drawing in self._live:
                        self._end(picture, "cancelled")

    def _end(self, picture: LivePicture, outcome: str) -> None:
        self._batch.end(picture.drawing)
        self._forget(picture.drawing, outcome)

    def _forget(self, drawing: Drawing, outcome: str) -> LivePicture:
        """Of one that the step batch has no more."""
        picture = self._live.pop(drawing)
        self._counts.ended(outcome, picture.spent)
        return picture
