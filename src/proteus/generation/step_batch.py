"""Which pictures get a step in the denoiser's next call, which wait, and which are ended before it.

Pure logic: no thread, no clock, no arrays. One caller at a time. The engine asks `next`, computes the call that it
names, and tells `stepped` and `end`. A row of a call is one guidance branch of one picture.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from proteus.admission.heap import Heap
from proteus.errors import DeadlineExceeded, InvalidRequest, ProteusError, QueueFull
from proteus.generation.bucket import Bucket, Drawing, Size
from proteus.limits import Denoiser, LatencyClass

MAX_REMEMBERED_CANCELS = 1024  # of keys that are not in flight (yet)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What to do now; who is refused or cancelled is out of everything already."""

    refused: tuple[tuple[Drawing, ProteusError], ...]
    cancelled: tuple[Drawing, ...]
    call: tuple[Drawing, ...]  # of one size; empty only where nothing is left in flight


class StepBatch:
    """Within a bucket whoever waited longest for a step goes first. Buckets share by computed cost, but one whose
    oldest has waited longer than the aging goes first.
    """

    def __init__(self, limits: Denoiser) -> None:
        self._limits = limits
        self._aging_s = limits.aging_ms / 1000
        self._in_flight: dict[bytes, Drawing] = {}
        self._buckets: dict[Size, Bucket] = {}  # none is empty
        self._left: dict[Size, int] = {}  # tags of empty ones that are ahead of the others
        self._deadlines = Heap[Drawing]()  # of those that wait
        self._to_cancel: set[bytes] = set()  # keys in flight
        self._remembered: OrderedDict[bytes, None] = OrderedDict()  # keys to cancel on arrival, oldest first
        self._may_place = False  # something changed since nobody more could be placed
        self._num_submitted = 0

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def num_live(self) -> int:
        """Pictures that take turns."""
        return sum(len(bucket.live) for bucket in self._buckets.values())

    def num_waiting(self) -> dict[LatencyClass, int]:
        """By class; what calls itself text waits like media."""
        numbers: dict[LatencyClass, int] = {"media": 0, "batch": 0}
        for bucket in self._buckets.values():
            for drawing in bucket.waiting():
                numbers["batch" if drawing.latency_class == "batch" else "media"] += 1
        return numbers

    def submit(self, drawing: Drawing, now_s: float) -> None:
        """Queue it. Raises InvalidRequest (key in use), QueueFull or DeadlineExceeded, and changes nothing then."""
        if drawing.key in self._in_flight:
            raise InvalidRequest("request_key is in use", fix="give each picture a random key of its own")
        bucket = self._buckets.get(drawing.size)
        would_wait = bucket is not None and len(bucket) >= self._limits.live_images
        num_waiting = sum(each.num_without_place for each in self._buckets.values())
        if would_wait and num_waiting >= self._limits.max_queue:
            raise QueueFull(
                f"{num_waiting} pictures wait for a place in the denoiser's batch",
                limit=f"[denoiser] max_queue = {self._limits.max_queue}",
            )
        if drawing.deadline_s is not None and drawing.deadline_s <= now_s:
            raise _too_late(0.0)
        drawing.number, drawing.arrived_s = self._num_submitted, now_s
        self._num_submitted += 1
        self._in_flight[drawing.key] = drawing
        (bucket or self._new_bucket(drawing.size)).add(drawing)
        if drawing.deadline_s is not None:
            self._deadlines.add(drawing, order=drawing.deadline_s, number=drawing.number)
        self._may_place = True
        if drawing.key in self._remembered:
            del self._remembered[drawing.key]
            self.cancel(drawing.key)

    def cancel(self, key: bytes) -> None:
        """It is ended before the next call. A key that is not in flight is remembered: a cancel can overtake its
        picture.
        """
        if (drawing := self._in_flight.get(key)) is not None:
            drawing.is_cancelled = True
            self._to_cancel.add(key)
            return
        self._remembered[key] = None
        if len(self._remembered) > MAX_REMEMBERED_CANCELS:
            self._remembered.popitem(last=False)

    def next(self, now_s: float) -> Turn:
        """Ends who is to end, gives out places, and says whose rows to compute."""
        cancelled = self._take_cancelled() if self._to_cancel else ()
        refused = self._take_late(now_s)
        if self._may_place:
            self._place(now_s)
        call: tuple[Drawing, ...] = ()
        if self._buckets:
            bucket = self._first(now_s)
            call = bucket.fitting(self._limits.max_rows)
            bucket.tag += sum(drawing.rows for drawing in call) * bucket.size[0] * bucket.size[1]
        return Turn(refused=refused, cancelled=cancelled, call=call)

    def stepped(self, call: Iterable[Drawing], now_s: float) -> None:
        """These of the last call have had their step, and are not at their end."""
        for drawing in call:
            self._buckets[drawing.size].stepped(drawing, now_s)

    def end(self, drawing: Drawing) -> None:
        """It is done or failed, and out of everything; its place is free."""
        if self._in_flight.get(drawing.key) is not drawing:
            raise RuntimeError("the picture is not in flight")
        self._remove(drawing)

    def end_all(self) -> list[Drawing]:
        """Ends everything, in order of arrival."""
        drawings = list(self._in_flight.values())
        for drawing in drawings:
            self._remove(drawing)
        return drawings

    def check(self) -> None:
        """Raises RuntimeError when the books do not add up."""
        for size, bucket in self._buckets.items():
            bucket.check()
            if bucket.size != size or not len(bucket):
                raise RuntimeError(f"the bucket {size} is empty, or another's")
        if not all(drawing in self._buckets[drawing.size] for drawing in self._in_flight.values()):
            raise RuntimeError("a picture is in flight and in no bucket")
        if sum(map(len, self._buckets.values())) != len(self._in_flight):
            raise RuntimeError(f"{len(self._in_flight)} are in flight, and not as many in the buckets")
        if not self._to_cancel <= self._in_flight.keys():
            raise RuntimeError("a cancel is pending for a picture that is gone")
        if not self._in_flight and (self._left or len(self._deadlines)):
            raise RuntimeError("something is kept of pictures that are gone")

    def _take_cancelled(self) -> tuple[Drawing, ...]:
        drawings = tuple(sorted((self._in_flight[key] for key in self._to_cancel), key=lambda each: each.number))
        for drawing in drawings:
            self._remove(drawing)
        return drawings

    def _take_late(self, now_s: float) -> tuple[tuple[Drawing, ProteusError], ...]:
        refused: list[tuple[Drawing, ProteusError]] = []
        while (late := self._deadlines.first()) is not None and self._deadlines.order_of(late) <= now_s:
            refused.append((late, _too_late(now_s - late.arrived_s)))
            self._remove(late)
        return tuple(refused)

    def _place(self, now_s: float) -> None:
        self._may_place = False
        for bucket in self._buckets.values():
            for drawing in bucket.place(now_s):
                self._deadlines.discard(drawing)

    def _first(self, now_s: float) -> Bucket:
        """Each bucket has somebody that takes turns, for none is empty and each has places."""
        buckets = self._buckets.values()
        longest = min(buckets, key=lambda bucket: bucket.oldest.since_s)
        if now_s - longest.oldest.since_s > self._aging_s:
            return longest
        return min(buckets, key=lambda bucket: (bucket.tag, -bucket.rows))

    def _new_bucket(self, size: Size) -> Bucket:
        """Begins where the least served is: what was computed while it was away is not made up for. Where it was
        ahead, it still is, or a size that comes and goes would always be first.
        """
        least = min((bucket.tag for bucket in self._buckets.values()), default=0)
        self._left = {other: tag for other, tag in self._left.items() if tag > least}
        bucket = Bucket(size, places=self._limits.live_images, tag=self._left.pop(size, least))
        self._buckets[size] = bucket
        return bucket

    def _remove(self, drawing: Drawing) -> None:
        del self._in_flight[drawing.key]
        self._to_cancel.discard(drawing.key)
        self._deadlines.discard(drawing)
        bucket = self._buckets[drawing.size]
        bucket.remove(drawing)
        if not len(bucket):
            del self._buckets[drawing.size]
            self._left[drawing.size] = bucket.tag
        if not self._buckets:
            self._left.clear()
        self._may_place = True


def _too_late(waited_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"not begun after {waited_s * 1e3:,.0f} ms of waiting",
        limit="the request's deadline",
        fix="try again later, or allow more time",
    )
