"""Nouns of the scheduler: one sequence as it sees it, and what the engine is to do in one iteration.

Modality is what a sequence is made of, whatever its latency class says: one with visual tokens is media.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from proteus.errors import ProteusError
from proteus.limits import LatencyClass

Modality = Literal["text", "media"]
LEAST_CHUNK = 2  # a single position is computed by another kernel than several, and its last bits differ
NEEDS: Mapping[Modality, frozenset[str]] = {"text": frozenset({"text"}), "media": frozenset({"media"})}


@dataclass(slots=True, eq=False, kw_only=True)
class Task:
    """One sequence. What follows `deadline_s` is changed by the scheduler alone."""

    key: bytes
    latency_class: LatencyClass
    tenant: str
    prompt_tokens: int
    visual_tokens: int  # of the prompt
    max_tokens: int  # of the answer; fits the context
    deadline_s: float | None = None  # to get a slot
    slot: int = -1  # none yet; after the end, the one it had
    prefilled: int = 0  # tokens of the prompt that are in the slot
    generated: int = 0
    idle: int = 0  # iterations that gave it work since it last got on
    number: int = 0  # in order of arrival
    arrived_s: float = 0.0
    arrived_v: float = 0.0
    order: tuple[float, int] = (0.0, 0)  # when it came or, with a slot, was placed; aged by class: the least goes first

    @property
    def kv_tokens(self) -> int:
        """Reserved from placing to the end: no sequence outgrows it, so none that runs is ever evicted."""
        return self.prompt_tokens + self.max_tokens

    @property
    def modality(self) -> Modality:
        return "media" if self.visual_tokens else "text"

    @property
    def cost(self) -> float:
        return self.kv_tokens

    @property
    def needs(self) -> frozenset[str]:
        return NEEDS[self.modality]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Prompt tokens that may be computed in this iteration."""

    task: Task
    tokens: int

    @property
    def due(self) -> int:
        """How many to compute now: fewer, once `prefilled` told of some that the prefix cache gave."""
        return share_of(self.task.prompt_tokens - self.task.prefilled, self.tokens, first=True, whole=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A sequence that has another slot from now on: what is in the slot `source` is to be copied to its own."""

    task: Task
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """What to do now, in this order; who is refused or cancelled is out of everything already."""

    refused: tuple[tuple[Task, ProteusError], ...]
    cancelled: tuple[Task, ...]
    placed: tuple[Task, ...]  # have a slot from now on
    moved: tuple[Move, ...]
    decodes: tuple[Task, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """For metrics, at one moment."""

    waiting: Mapping[LatencyClass, int]
    prefilling: Mapping[LatencyClass, int]
    decoding: Mapping[LatencyClass, int]
    kv_tokens: int  # reserved by all that have a slot
    policy: str  # in force: `auto` is never told, but what it took


def share_of(left: int, budget: int, *, first: bool, whole: bool) -> int:
    """Tokens of a prompt with `left` to go for a chunk, none if it has to wait. Neither this chunk nor the last one is
    under LEAST_CHUNK, unless no more is left from the start; for that the first may go over the budget.
    """
    if left <= budget or (whole and first):
        return left
    if whole:
        return 0
    tokens = min(budget, left - LEAST_CHUNK)  # leaves a chunk that is large enough
    if tokens >= LEAST_CHUNK:
        return tokens
    if not first:
        return 0
    return left if left < 2 * LEAST_CHUNK else LEAST_CHUNK
