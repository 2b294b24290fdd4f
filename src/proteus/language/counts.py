"""What the engine counts since its start: tokens, time, ends."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from proteus.language.answer import Answer

COMPLETE = ("stop", "length")


@dataclass(slots=True)
class Counts:
    """Changed by the engine's thread alone."""

    iterations: int = 0
    prefilled_tokens: int = 0  # computed
    cached_tokens: int = 0  # taken from the prefix cache instead
    saved_s: float = 0.0  # what computing those would have taken, at the mean time of a token by then
    output_tokens: int = 0
    given_up_tokens: int = 0  # of chunks that gave way to text, and are computed anew
    wasted_prefill_tokens: int = 0  # computed for requests that were stopped or failed
    wasted_decode_tokens: int = 0
    prefill_s: float = 0.0
    given_up_s: float = 0.0
    decode_s: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)  # finish reasons and error codes

    def note_prefill(self, tokens: int, seconds: float) -> None:
        self.prefilled_tokens += tokens
        self.prefill_s += seconds

    def note_cached(self, tokens: int) -> float:
        """The seconds that they saved, as estimated."""
        saved_s = tokens * self.prefill_s / self.prefilled_tokens if self.prefilled_tokens else 0.0
        self.cached_tokens += tokens
        self.saved_s += saved_s
        return saved_s

    def note_given_up(self, tokens: int, seconds: float) -> None:
        self.given_up_tokens += tokens
        self.given_up_s += seconds

    def ended(self, answer: Answer, outcome: str) -> None:
        self.outcomes[outcome] += 1
        if outcome not in COMPLETE:
            self.wasted_prefill_tokens += answer.computed_tokens
            self.wasted_decode_tokens += answer.num_tokens

    def copy(self) -> Counts:
        return replace(self, outcomes=self.outcomes.copy())
