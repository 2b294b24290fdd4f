"""Whether a model still says something: what broken weights, overflow or a stuck cache look like in its logits."""

from __future__ import annotations

import math

CONSTANT_EVERY = 16  # tokens between two looks at the lowest logit, which costs a pass over the row
SUSPECT_AFTER = 16  # tokens with the same best id at bitwise the same logit: from here on the lowest one is seen too
STUCK_AFTER = 32  # of them, where the lowest logit does not move either


class Health:
    """Of one answer; told of each token's logits, before anything is chosen from them.

    A model that repeats itself is not stuck: position and keys differ at every token, and with them the last bits of
    the logits. In 32 bits the demo's best logit differs at every step of 1,000 times the same token; rounded to
    bfloat16 it stays for up to 28 steps, both ends of the row for up to 21. Longer: the input no longer reaches the
    output.
    """

    __slots__ = ("_highest", "_lowest", "_num_checked", "_num_same", "_peak", "wants_lowest")

    def __init__(self) -> None:
        self._num_checked = self._num_same = 0
        self._highest, self._peak = -1, 0.0
        self._lowest: float | None = None  # when last seen among the same ones
        self.wants_lowest = True  # whether the next check needs the lowest logit too

    def check(self, highest: int, peak: float, lowest: float | None = None) -> str | None:
        """Why the output is broken, for the log; None where it is not. Argmax, maximum and minimum of the logits."""
        self._num_checked += 1
        if not math.isfinite(peak):  # numpy's maximum is NaN where any value is
            return "logits are not finite"
        if peak == lowest:
            return "all logits are equal"
        if peak != self._peak or highest != self._highest or _differ(lowest, self._lowest):
            self._highest, self._peak, self._lowest, self._num_same = highest, peak, lowest, 1
            self.wants_lowest = self._num_checked % CONSTANT_EVERY == 0
            return None
        self._num_same += 1
        self.wants_lowest = self._num_checked % CONSTANT_EVERY == 0 or self._num_same >= SUSPECT_AFTER
        if lowest is not None:
            self._lowest = lowest
        if self._num_same < STUCK_AFTER:
            return None
        return f"token {highest} had the logit {peak!r} {STUCK_AFTER} times in a row"


def _differ(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and one != other
