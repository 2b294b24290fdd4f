"""Where a request's time went: in stages one after the other, which add up, or as a stopwatch of named blocks.

TTFT = ingress + admission + preprocess + encoder queue + encode + connector + transfer + LM queue + prefill.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

Stage = Literal[
    "ingress",
    "admission",
    "preprocess",
    "encoder_queue",
    "encode",
    "connector",
    "transfer",
    "lm_queue",
    "prefill",
    "decode",
]
STAGES: tuple[Stage, ...] = get_args(Stage)
IngressPart = Literal["transport", "parse", "fetch", "plan", "prompt"]
Span = tuple[int, int]  # begun and done, ns of the machine's monotonic clock; (0, 0): not known
MS = 1e6  # ns
MAX_SENT_AGE_NS = 60 * 10**9  # of a moment that a client names


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeMarks:
    """When a picture passed the models of image_tokens."""

    preprocess: Span
    encoder: Span
    connector: Span

    def stages_ns(self, begun_ns: int, done_ns: int) -> dict[Stage, int]:
        """Their share of the time from `begun_ns` to `done_ns`, in which somebody waited for the picture.

        What was before does not count: of a picture that another request had begun, only the rest was waited for. An
        encoder without a clock takes all up to `done_ns`.
        """
        ends: list[tuple[Stage, int]] = [("preprocess", self.preprocess[1])]
        if self.encoder[1]:
            ends += [("encoder_queue", self.encoder[0]), ("encode", self.encoder[1])]
        else:
            ends += [("encode", done_ns)]
        if self.encoder[1] and self.connector[1]:
            ends += [("connector", self.connector[1])]
        stages: dict[Stage, int] = {}
        at_ns = begun_ns
        for stage, end_ns in ends:
            reached_ns = min(max(at_ns, end_ns), done_ns)
            stages[stage] = reached_ns - at_ns
            at_ns = reached_ns
        return stages


class Timeline:
    """Of one request of `chat`: stages that follow each other without gap or overlap, from its arrival on.

    What no stage claims is `transfer`: hops between models, and the wait for the event loop. More than there was,
    no stage can claim.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._arrived_ns = clock_ns()
        self._start_ns = self._arrived_ns
        self._ingress_ns: dict[IngressPart, int] = {}
        self._ready_ns = self._arrived_ns  # the end of ingress
        self._stages_ns: dict[Stage, int] = {}
        self.first_index: int | None = None  # of the answer that spoke first
        self._first_ns = self._last_ns = self._longest_gap_ns = self._later_tokens = 0

    def sent(self, sent_ns: int) -> None:
        """The client sent it then, by the same clock; believed where that was before its arrival, but not long."""
        if 0 <= self._arrived_ns - sent_ns <= MAX_SENT_AGE_NS:
            self._start_ns = sent_ns
            self._ingress_ns["transport"] = self._arrived_ns - sent_ns

    @property
    def start_s(self) -> float:
        """When it was sent, as far as that is known, else when it arrived; deadlines count from here."""
        return self._start_ns / 1e9

    @contextmanager
    def ingress(self, part: IngressPart) -> Iterator[None]:
        """Time a part of what is done before the request asks to be admitted."""
        begun_ns = self._clock_ns()
        try:
            yield
        finally:
            now_ns = self._clock_ns()
            self._ingress_ns[part] = self._ingress_ns.get(part, 0) + now_ns - begun_ns
            self._ready_ns = now_ns

    def ready(self) -> None:
        """Now it asks to be admitted: ingress is over, hops between threads included."""
        self._ready_ns = self._clock_ns()

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        begun_ns = self._clock_ns()
        try:
            yield
        finally:
            self.add(stage, self._clock_ns() - begun_ns)

    def add(self, stage: Stage, ns: int) -> None:
        """Time of this request that was measured elsewhere; never together with another stage's."""
        self._stages_ns[stage] = self._stages_ns.get(stage, 0) + ns

    def now_ns(self) -> int:
        return self._clock_ns()

    def tokens(self, index: int, count: int) -> None:
        """So many tokens of answer `index` leave now. The times are those of the answer that speaks first."""
        now_ns = self._clock_ns()
        if self.first_index is None:
            self.first_index = index
            self._first_ns = self._last_ns = now_ns
            self._later_tokens = count - 1
        elif index == self.first_index:
            self._longest_gap_ns = max(self._longest_gap_ns, now_ns - self._last_ns)
            self._last_ns = now_ns
            self._later_tokens += count

    def report(self) -> Times:
        """At the end of the request, which is now."""
        end_ns = self._clock_ns()
        first_ns = end_ns if self.first_index is None else self._first_ns
        later = self._later_tokens
        return Times(
            stages_ms={stage: ns / MS for stage, ns in self._in_order(first_ns, end_ns)},
            ingress_ms={part: ns / MS for part, ns in self._ingress_ns.items()},
            ttft_ms=None if self.first_index is None else (first_ns - self._start_ns) / MS,
            total_ms=(end_ns - self._start_ns) / MS,
            mean_inter_token_ms=(self._last_ns - self._first_ns) / later / MS if later else None,
            longest_inter_token_ms=self._longest_gap_ns / MS if later else None,
            first_index=self.first_index,
        )

    def _in_order(self, first_ns: int, end_ns: int) -> Iterator[tuple[Stage, int]]:
        """Every stage that took place: up to `transfer` what was measured, as far as there was time for it."""
        claimed: dict[Stage, int] = {"ingress": self._ready_ns - self._start_ns, **self._stages_ns}
        left_ns = first_ns - self._start_ns
        granted: dict[Stage, int] = {}
        for stage in STAGES:
            if stage in claimed:
                granted[stage] = min(claimed[stage], left_ns)
                left_ns -= granted[stage]
        granted |= {"transfer": left_ns, "decode": end_ns - first_ns}
        yield from ((stage, granted[stage]) for stage in STAGES if stage in granted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """All in ms. `stages_ms` add up to `total_ms`, those before `decode` to `ttft_ms`."""

    stages_ms: Mapping[Stage, float]
    ingress_ms: Mapping[IngressPart, float]
    ttft_ms: float | None  # arrival to the first token; None: there was none
    total_ms: float
    mean_inter_token_ms: float | None  # None: fewer than two tokens
    longest_inter_token_ms: float | None
    first_index: int | None  # of the answer that spoke first, whose times they are


class Stopwatch:
    """Times of one request to `draw`. Stages are added up by name; `total` runs from the start."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._start_s = clock_s()
        self._stages_ms: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the block under `name`, also when it raises."""
        start_s = self._clock_s()
        try:
            yield
        finally:
            self.add(name, (self._clock_s() - start_s) * 1e3)

    def add(self, name: str, ms: float) -> None:
        """Add a time measured elsewhere."""
        self._stages_ms[name] = self._stages_ms.get(name, 0.0) + ms

    def ms(self, name: str) -> float:
        """Of one stage, so far."""
        return self._stages_ms.get(name, 0.0)

    def report_ms(self) -> dict[str, float]:
        """Every stage so far, in the order of their first use, `transfer` and `total`; rounded to µs.

        `transfer` is what no stage holds: the hops between models and the event loop's own work.
        """
        total_ms = (self._clock_s() - self._start_s) * 1e3
        transfer_ms = max(0.0, total_ms - sum(self._stages_ms.values()))
        times_ms = {**self._stages_ms, "transfer": transfer_ms, "total": total_ms}
        return {name: round(ms, 3) for name, ms in times_ms.items()}
