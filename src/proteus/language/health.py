"""Whether a model still says something: what broken weights, overflow or a stuck cache look like in its logits."""

from __future__ import annotations

import math

CONSTANT_EVERY = 16  # tokens between two looks at the lowest logit, which costs a pass over the row
STUCK_AFTER = 32  # tokens with the same best id at bitwise the same logit


class Health:
    """Of one answer; told of each token's logits, before anything is chosen from them.

    A model that repeats itself is not stuck: position and keys differ at every token, and with them the last bits of
    the best logit. Bitwise the same value 32 times means that its input no longer reaches the output.
    """

    __slots__ = ("_highest", "_num_checked", "_num_same", "_peak")

    def __init__(self) -> None:
        self._num_checked = self._num_same = 0
        self._highest, self._peak = -1, 0.0

    @property
    def wants_lowest(self) -> bool:
        """Whether the next check needs the lowest logit too."""
        return self._num_checked % CONSTANT_EVERY == 0

    def check(self, highest: int, peak: float, lowest: float | None = None) -> str | None:
        """Why the output is broken, for the log; None where it is not. Argmax, maximum and minimum of the logits."""
        self._num_checked += 1
        if not math.isfinite(peak):  # numpy's maximum is NaN where any value is
            return "logits are not finite"
        if peak == lowest:
            return "all logits are equal"
        if highest == self._highest and peak == self._peak:
            self._num_same += 1
            if self._num_same >= STUCK_AFTER:
                return f"token {highest} had the logit {peak!r} {STUCK_AFTER} times in a row"
        else:
            self._highest, self._peak, self._num_same = highest, peak, 1
        return None
