"""One picture on its way through the denoiser's loop: where it is, what it cost, and what it tells its client.

Z latent channels, h and w sides in latents.
"""

from __future__ import annotations

import logging
import time

import numpy as np

from proteus.errors import BrokenModel
from proteus.generation.bucket import Drawing, Size
from proteus.generation.counts import Moment, Spent
from proteus.generation.guidance import combine
from proteus.generation.rows import Rows
from proteus.generation.samplers import Trajectory
from proteus.generation.task import DrawEmit, DrawEnd, DrawEvent, DrawFailure, DrawFinish, DrawTask, Floats

log = logging.getLogger(__name__)


class LivePicture:
    """Used by the engine's thread only, once submitted. Its `drawing` is what the step batch knows of it."""

    def __init__(
        self, task: DrawTask, emit: DrawEmit, *, trajectory: Trajectory, size: Size, num_branches: int
    ) -> None:
        settings = task.settings
        self.drawing = Drawing(
            key=task.request_key,
            size=size,
            rows=num_branches,
            evaluations=num_branches * trajectory.evaluations_left,
            latency_class=task.latency_class,
            tenant=task.tenant,
            deadline_s=task.deadline_s,
        )
        self.size_name = f"{settings.width_px}x{settings.height_px}"
        self.spent: dict[Moment, Spent] = {"before": Spent(), "after": Spent()}
        self._trajectory = trajectory
        self._conditions = (
            (task.prompt,) if task.negative is None or num_branches == 1 else (task.prompt, task.negative)
        )
        self._guidance = settings.guidance
        self._steps, self._preview_every = settings.steps, settings.preview_every
        self._preview_gap_ns = 1e9 / settings.max_previews_per_s
        self._preview_from_ns = 0.0
        self._previewed_step = 0
        self._emit = emit
        self._submitted_ns = time.monotonic_ns()
        self._first_row_ns = self._last_row_ns = 0  # 0: none yet

    @property
    def is_done(self) -> bool:
        return not self._trajectory.evaluations_left

    def write(self, rows: Rows, first: int) -> None:
        """What the next evaluation is asked of, into a call's rows from `first` on."""
        trajectory = self._trajectory
        rows.write(first, trajectory.model_input(), trajectory.timestep, self._conditions, self._guidance)

    def note_call(self, begin_ns: int, end_ns: int, *, rows: int) -> None:
        """It was in a call of so many rows, the padded ones aside."""
        own = self.drawing.rows
        moment: Moment = "after" if self.drawing.is_cancelled else "before"
        self.spent[moment].add(own, (end_ns - begin_ns) * 1e-9 * own / rows)
        self._first_row_ns = self._first_row_ns or begin_ns
        self._last_row_ns = end_ns

    def advance(self, prediction: Floats) -> None:
        """One evaluation further with its rows of a call's predictions; raises BrokenModel."""
        if not np.isfinite(prediction).all():
            log.error("a prediction at step %d of %d is not finite", self._trajectory.step + 1, self._steps)
            raise _broken()
        self._trajectory.advance(
            prediction[0] if len(prediction) == 1 else combine(prediction[0], prediction[1], self._guidance)
        )
        if self.is_done and not np.isfinite(self._trajectory.latent).all():
            log.error("the latent after %d steps is not finite", self._steps)
            raise _broken()

    def preview(self, now_ns: int) -> DrawEvent | None:
        """The estimate of the clean picture, where one is due: at every k-th step, and not too soon after the last."""
        step = self._trajectory.step
        if not self._preview_every or step == self._previewed_step or step % self._preview_every:
            return None
        if now_ns < self._preview_from_ns:
            return None
        self._previewed_step, self._preview_from_ns = step, now_ns + self._preview_gap_ns
        return DrawEvent(step=step, steps=self._steps, clean=self._trajectory.clean.copy())

    def done(self) -> DrawEvent:
        return self._last_event("done", self._trajectory.latent)

    def cancelled(self) -> DrawEvent:
        return self._last_event("cancelled", None)

    def send(self, event: DrawEvent | DrawFailure) -> bool:
        """Whether the client took it; where not, there is nobody left to tell."""
        try:
            self._emit(event)
        except Exception:
            log.exception("a client's emit raised: its picture is cancelled")
            return False
        return True

    def _last_event(self, reason: DrawFinish, latent: Floats | None) -> DrawEvent:
        first_row_ns = self._first_row_ns or time.monotonic_ns()
        spent = self.spent.values()
        end = DrawEnd(
            reason=reason,
            queue_us=(first_row_ns - self._submitted_ns) // 1000,
            denoise_us=max(0, self._last_row_ns - first_row_ns) // 1000,
            evaluations=sum(part.rows for part in spent),
            branches=self.drawing.rows,
            accelerator_us=round(sum(part.seconds for part in spent) * 1e6),
        )
        return DrawEvent(step=self._trajectory.step, steps=self._steps, clean=latent, end=end)


def _broken() -> BrokenModel:
    return BrokenModel(
        "the denoiser's output cannot be used, the picture ends here",
        fix="change the prompt or the settings; what was seen is in the server's log",
    )
