"""Pictures of one size, in latents: those that take turns in the denoiser's calls, and those that wait for a place.

Pure. Only pictures of one bucket share a call, so each bucket has places and queues of its own: one that is full keeps
no other out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from proteus.admission.queue import FairQueue
from proteus.limits import LatencyClass

Size = tuple[int, int]  # h and w, in latents
NEEDS = frozenset({"place"})
BATCH_AGING_S = 10.0  # waited by a picture of the class batch before it goes ahead of newer ones of other classes


@dataclass(slots=True, eq=False, kw_only=True)
class Drawing:
    """One picture as the step batch sees it. What follows `deadline_s` is changed by the step batch alone."""

    key: bytes
    size: Size
    rows: int  # in each call: its guidance branches
    evaluations: int  # rows over all steps
    latency_class: LatencyClass = "media"
    tenant: str = ""
    deadline_s: float | None = None  # to get a place
    number: int = 0  # in order of arrival
    arrived_s: float = 0.0
    arrived_v: float = 0.0
    since_s: float = 0.0  # its last step or, before the first, its place
    is_live: bool = False  # has a place
    is_cancelled: bool = False  # a cancel arrived; it is ended before the next call

    @property
    def cost(self) -> float:
        """Rows of the whole picture times latents."""
        return self.evaluations * self.size[0] * self.size[1]

    @property
    def needs(self) -> frozenset[str]:
        return NEEDS


class _Lane:
    """Tenants share a lane by cost; lanes go by the oldest in each."""

    def __init__(self, aging_s: float) -> None:
        self._aging_s = aging_s
        self.by_arrival: OrderedDict[Drawing, None] = OrderedDict()  # unlike dict, finds its first in O(1)
        self.queue = FairQueue[Drawing]()

    @property
    def order(self) -> tuple[float, int]:
        oldest = next(iter(self.by_arrival))
        return oldest.arrived_s + self._aging_s, oldest.number


class Bucket:
    """`tag` is the cost computed for it so far, counted from where the others were when it began."""

    def __init__(self, size: Size, *, places: int, tag: int) -> None:
        self._places = places
        self.size, self.tag = size, tag
        self.live: OrderedDict[Drawing, None] = OrderedDict()  # whoever waited longest for a step is first
        self._lanes = {False: _Lane(0.0), True: _Lane(BATCH_AGING_S)}

    def __len__(self) -> int:
        return len(self.live) + self.num_waiting

    def __contains__(self, drawing: Drawing) -> bool:
        return drawing in self.live or drawing in self._lane_of(drawing).by_arrival

    @property
    def num_waiting(self) -> int:
        return sum(len(lane.by_arrival) for lane in self._lanes.values())

    @property
    def num_without_place(self) -> int:
        """Of all that are here, those that will have to wait for one."""
        return max(0, len(self) - self._places)

    @property
    def oldest(self) -> Drawing:
        """Who waited longest since its last step."""
        return next(iter(self.live))

    @property
    def rows(self) -> int:
        """Of all that take turns."""
        return sum(drawing.rows for drawing in self.live)

    def waiting(self) -> Iterator[Drawing]:
        """In no order."""
        for lane in self._lanes.values():
            yield from lane.by_arrival

    def add(self, drawing: Drawing) -> None:
        lane = self._lane_of(drawing)
        lane.by_arrival[drawing] = None
        lane.queue.add(drawing)

    def remove(self, drawing: Drawing) -> None:
        """One that has a place, or waits: its tenant pays nothing then."""
        if drawing.is_live:
            del self.live[drawing]
            drawing.is_live = False
            return
        lane = self._lane_of(drawing)
        lane.queue.remove(drawing)
        del lane.by_arrival[drawing]

    def place(self, now_s: float) -> list[Drawing]:
        """Gives free places to those that wait."""
        placed: list[Drawing] = []
        while len(self.live) < self._places and self.num_waiting:
            lane = min((lane for lane in self._lanes.values() if lane.by_arrival), key=lambda lane: lane.order)
            drawing = next(lane.queue.firsts())[1]  # all need the same, so the queue has one first
            lane.queue.admit(drawing)
            del lane.by_arrival[drawing]
            drawing.is_live, drawing.since_s = True, now_s
            self.live[drawing] = None
            placed.append(drawing)
        return placed

    def fitting(self, max_rows: int) -> tuple[Drawing, ...]:
        """Whole pictures for one call, longest without a step first; the next that fits fills what is left."""
        chosen: list[Drawing] = []
        left = max_rows
        for drawing in self.live:
            if drawing.rows <= left:
                chosen.append(drawing)
                left -= drawing.rows
                if not left:
                    break
        return tuple(chosen)

    def stepped(self, drawing: Drawing, now_s: float) -> None:
        drawing.since_s = now_s
        self.live.move_to_end(drawing)

    def check(self) -> None:
        """Raises RuntimeError unless each is where it says, and those first in line waited longest."""
        for lane in self._lanes.values():
            if len(lane.by_arrival) != len(lane.queue):
                raise RuntimeError(f"{len(lane.by_arrival)} wait in a lane, {len(lane.queue)} in its queue")
        if len(self.live) > self._places:
            raise RuntimeError(f"{len(self.live)} pictures have {self._places} places")
        if not all(drawing.is_live for drawing in self.live) or any(drawing.is_live for drawing in self.waiting()):
            raise RuntimeError("a picture has a place and waits for one")
        since_s = [drawing.since_s for drawing in self.live]
        if since_s != sorted(since_s):
            raise RuntimeError("who waited longest since its last step is not first")

    def _lane_of(self, drawing: Drawing) -> _Lane:
        return self._lanes[drawing.latency_class == "batch"]
