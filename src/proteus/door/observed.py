"""What each request was, how it ended and what it took, for metrics: noted at its end, told later by the heart.

Every label comes from a closed set, so that the number of series is bounded.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from proteus.cost.buckets import size_bucket
from proteus.door.arrival import CANCELLED, Ending
from proteus.door.calls import VisualTokens
from proteus.door.encoding import Place, place, planned
from proteus.door.prepare import Prepared
from proteus.errors import InternalError, ProteusError, Unavailable
from proteus.limits import LatencyClass
from proteus.stages import Times

MAX_WAITING = 4_096  # observations between two beats; one takes Triton some 10 µs
MAX_SIZES = 32  # of drawings, told apart; all others are OTHER
NONE, MIXED, OTHER = "none", "mixed", "other"
KIND = ("modality", "size", "tier", "latency_class")
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    name: str  # of the Prometheus family
    meaning: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = BUCKETS_S


STAGE_SECONDS = Histogram(
    name="proteus_stage_seconds", meaning="Stages of requests; hits of caches have none", labels=("stage", *KIND)
)
TTFT_SECONDS = Histogram(name="proteus_ttft_seconds", meaning="Arrival to the first token", labels=KIND)
INTER_TOKEN_SECONDS = Histogram(
    name="proteus_inter_token_seconds", meaning="Between two tokens: the mean of a request", labels=KIND
)
HISTOGRAMS = (STAGE_SECONDS, TTFT_SECONDS, INTER_TOKEN_SECONDS)
DRAW_HISTOGRAMS = (STAGE_SECONDS,)


@dataclass(frozen=True, slots=True)
class Observation:
    name: str  # of its histogram
    labels: tuple[str, ...]
    value: float


class Observed:
    """By one door, since the start; of one event loop."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.visual_tokens: Counter[str] = Counter()  # by where they came from
        self.decoded_pixels = 0
        self.dropped = 0  # observations that are in no histogram
        self._waiting: list[Observation] = []
        self._sizes: set[str] = set()

    @contextmanager
    def request(self) -> Iterator[Ending]:
        """Count one request by its outcome, whatever it raises."""
        ending = Ending()
        try:
            yield ending
        except ProteusError as error:
            ending.outcome = error.code
            raise
        except CancelledError:
            ending.outcome = Unavailable.code
            raise
        except Exception:
            ending.outcome = InternalError.code
            raise
        finally:
            self.outcomes[ending.outcome] += 1

    def encoded(self, prepared: Prepared, found: Mapping[Place, VisualTokens]) -> None:
        """The pictures of a request have become visual tokens."""
        decoded: set[Place] = set()
        for picture, cost in planned(prepared):
            at = place(picture, cost)
            self.visual_tokens[found[at].source] += len(found[at].rows)
            if found[at].source == "encoded" and not found[at].preprocess_saved_ms and at not in decoded:
                decoded.add(at)
                self.decoded_pixels += picture.header.width_px * picture.header.height_px

    def answered(self, ending: Ending, prepared: Prepared, times: Times, *, cancelled: bool) -> None:
        """A request of `chat` is over; of one that left before its first token nothing is observed."""
        if cancelled:
            ending.outcome = CANCELLED
        ending.stages_ms = {str(stage): ms for stage, ms in times.stages_ms.items()}
        if times.ttft_ms is None:
            return
        kind = _kind_of(prepared)
        self._note(TTFT_SECONDS, kind, times.ttft_ms)
        if times.mean_inter_token_ms is not None:
            self._note(INTER_TOKEN_SECONDS, kind, times.mean_inter_token_ms)
        for stage, ms in times.stages_ms.items():
            self._note(STAGE_SECONDS, (stage, *kind), ms)

    def drawn(
        self, ending: Ending, size: str, latency_class: LatencyClass, stages_ms: Mapping[str, float], *, cancelled: bool
    ) -> None:
        """A request of `draw` is over; of one that was cancelled nothing is observed."""
        ending.stages_ms = stages_ms
        if cancelled:
            ending.outcome = CANCELLED
            return
        kind = "draw", self._size(size), NONE, latency_class
        for stage, ms in stages_ms.items():
            if stage != "total":
                self._note(STAGE_SECONDS, (stage, *kind), ms)

    def take(self) -> Sequence[Observation]:
        """What came since it was taken last."""
        taken, self._waiting = self._waiting, []
        return taken

    def _note(self, histogram: Histogram, labels: tuple[str, ...], ms: float) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
        else:
            self._waiting.append(Observation(histogram.name, labels, ms / 1e3))

    def _size(self, size: str) -> str:
        if len(self._sizes) < MAX_SIZES:
            self._sizes.add(size)
        return size if size in self._sizes else OTHER


def _kind_of(prepared: Prepared) -> tuple[str, str, str, str]:
    """The size is that of the largest picture, as it is stored."""
    pictures = prepared.pictures
    if not pictures:
        return "text", NONE, NONE, prepared.latency_class
    pixels = max(picture.header.width_px * picture.header.height_px for picture in pictures)
    tiers = {picture.tier for picture in pictures}
    modality = "image" if len(pictures) == 1 else "images"
    return modality, size_bucket(pixels), tiers.pop() if len(tiers) == 1 else MIXED, prepared.latency_class
