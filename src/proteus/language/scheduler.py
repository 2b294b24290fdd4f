"""Who of the sequences decodes, prefills, waits or is ended, iteration by iteration. docs/decisions/0013 says why so.

Pure logic: no thread, no clock, no arrays. One caller at a time. The engine asks `next`, does what it says, and tells
`prefilled`, `generated` and `end`. No iteration is empty while something is in flight: work is given, or one is ended.
"""

from __future__ import annotations

import heapq
from bisect import insort

from proteus.errors import Stalled
from proteus.language.placement import MAX_REMEMBERED_CANCELS, Placement, Refusals
from proteus.language.task import Chunk, Iteration, Move, Task, share_of
from proteus.limits import Schedule

__all__ = ["MAX_REMEMBERED_CANCELS", "Scheduler"]

MOVED_FROM_TOKENS = 16  # that may still come: to copy a slot costs some steps with a row too many
MAX_IDLE = 64  # iterations with work and without progress after which a task is ended


class Scheduler(Placement):
    """Placement, and the work of each iteration."""

    def __init__(self, limits: Schedule, *, slots: int, max_queue: int) -> None:
        super().__init__(limits, slots=slots, max_queue=max_queue)
        self._prefilling: list[Task] = []  # first to go first
        self._decoding: tuple[Task, ...] | None = ()  # None: to be made anew
        self._last = _only(())

    def next(self, now_s: float) -> Iteration:
        """Ends who is to end, places who may have a slot, and gives out the work of one iteration."""
        cancelled = self.take_cancelled() if self._to_cancel else ()
        refused = self.take_refused(now_s)
        placed: tuple[Task, ...] = ()
        moved: tuple[Move, ...] = ()
        if self._may_place:
            placed, moved = self.place(now_s), self._move_down()
        refused += self.take_unplaceable()
        decodes = self._decodes()
        for task in decodes:
            task.idle += 1
        if not (cancelled or refused or placed or moved or self._prefilling):
            return self._decodes_only(decodes)
        return Iteration(
            refused=tuple(refused),
            cancelled=cancelled,
            placed=placed,
            moved=moved,
            decodes=decodes,
            chunks=self._chunks(self._limits.iteration_tokens - len(decodes)),
        )

    def owes_text(self) -> bool:
        """Whether text that somebody waits for has no slot yet, and the next iteration would give it one."""
        return (
            self._policy.cuts_prompts
            and bool(self._free)
            and self._num_running["text"] < self._policy.caps["text"]
            and self._waiting.has_text()
        )

    def prefilled(self, task: Task, tokens: int) -> None:
        super().prefilled(task, tokens)
        if tokens and task.prefilled == task.prompt_tokens:
            self._prefilling.remove(task)
            self._decoding = None

    def check(self) -> None:
        super().check()
        prefilling = [task for task in self._running if task.prefilled < task.prompt_tokens]
        if self._prefilling != sorted(prefilling, key=_order):
            raise RuntimeError("who prefills is out of order, or not who has some of the prompt left")

    def take_refused(self, now_s: float) -> Refusals:
        """And the watchdog's: those that run and stand still."""
        refused = super().take_refused(now_s)
        for task in [task for task in self._running if task.idle >= MAX_IDLE]:
            refused.append((task, _stalled(task)))
            self._remove(task)
        return refused

    def place(self, now_s: float) -> tuple[Task, ...]:
        placed = super().place(now_s)
        for task in placed:
            insort(self._prefilling, task, key=_order)
        return placed

    def _move_down(self) -> tuple[Move, ...]:
        """From the highest slots to free ones below: a step computes a row for each slot up to the highest taken."""
        moves: list[Move] = []
        while self._free and self._running:
            task = max(self._running, key=_slot)
            if task.slot < self._free[0] or task.max_tokens - task.generated < MOVED_FROM_TOKENS:
                break
            moves.append(Move(task=task, source=task.slot))
            task.slot = heapq.heapreplace(self._free, task.slot)
            self._decoding = None
        return tuple(moves)

    def _decodes(self) -> tuple[Task, ...]:
        if self._decoding is None:
            self._decoding = tuple(task for task in self._running if task.prefilled == task.prompt_tokens)
        return self._decoding

    def _decodes_only(self, decodes: tuple[Task, ...]) -> Iteration:
        if self._last.decodes is not decodes:
            self._last = _only(decodes)
        return self._last

    def _chunks(self, budget: int) -> tuple[Chunk, ...]:
        """Shares of what the decodes leave, in order; the first in order always gets one."""
        chunks: list[Chunk] = []
        num_media = 0
        for task in self._prefilling:
            if task.visual_tokens and num_media == self._policy.max_media_prefills:
                continue
            left = task.prompt_tokens - task.prefilled
            tokens = share_of(left, budget, first=not chunks, whole=not self._policy.cuts_prompts)
            if not tokens:
                break
            task.idle += 1
            budget -= tokens
            num_media += bool(task.visual_tokens)
            chunks.append(Chunk(task=task, tokens=tokens))
        return tuple(chunks)

    def _remove(self, task: Task) -> None:
        ran = task in self._running
        super()._remove(task)
        if ran and task.prefilled < task.prompt_tokens:
            self._prefilling.remove(task)
        elif ran:
            self._decoding = None


def _only(decodes: tuple[Task, ...]) -> Iteration:
    return Iteration(refused=(), cancelled=(), placed=(), moved=(), decodes=decodes, chunks=())


def _slot(task: Task) -> int:
    return task.slot


def _order(task: Task) -> tuple[float, int]:
    return task.order


def _stalled(task: Task) -> Stalled:
    return Stalled(
        f"no progress in {task.idle} iterations, with {task.prefilled:,} of {task.prompt_tokens:,} prompt tokens in "
        f"and {task.generated:,} of {task.max_tokens:,} chosen",
        fix="try again; if it happens again, report the request",
    )
