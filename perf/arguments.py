"""Numbers of a command line that must be large enough to measure anything."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TypeVar

Number = TypeVar("Number", int, float)


def at_least(least: Number) -> Callable[[str], Number]:
    """For `type=`: a number of the kind of `least`, and no lower."""

    def number(text: str) -> Number:
        value = type(least)(text)
        if not value >= least:  # NaN is not either
            raise argparse.ArgumentTypeError(f"{text} is below {least}")
        if value == math.inf:
            raise argparse.ArgumentTypeError(f"{text} has no end")
        return value

    number.__name__ = "number"  # what argparse calls it when the text is none
    return number
