"""What a request costs by the price table: of what was used, or the most that it can come to. Decimals, exact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Self

from proteus.cost.vector import ResourceVector
from proteus.limits_gateway import Prices

NOTHING = Decimal(0)
RATE_DIGITS = Decimal("1e-12")  # of what is divided: an amount itself is exact


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What is charged for. A token of the prompt counts once: computed, or cached."""

    text_tokens: int = 0
    visual_tokens: int = 0
    cached_text_tokens: int = 0
    cached_visual_tokens: int = 0
    output_tokens: int = 0
    pictures: int = 0  # read
    drawn_pictures: int = 0
    token_passes: int = 0

    @classmethod
    def at_most(cls, vector: ResourceVector) -> Self:
        """Nothing cached, every answer as long as it may be."""
        return cls(
            text_tokens=vector.text_tokens,
            visual_tokens=vector.visual_tokens,
            output_tokens=vector.output_tokens,
            pictures=vector.items,
            drawn_pictures=vector.images,
            token_passes=vector.token_passes,
        )

    @classmethod
    def of_answer(cls, usage: Mapping[str, int], *, pictures: int, cached_visual_tokens: int) -> Self:
        """`usage` of a report of `chat`; which of the cached tokens are visual, the prompt's order tells."""
        cached_text_tokens = usage["cached_tokens"] - cached_visual_tokens
        return cls(
            text_tokens=usage["text_tokens"] - cached_text_tokens,
            visual_tokens=usage["visual_tokens"] - cached_visual_tokens,
            cached_text_tokens=cached_text_tokens,
            cached_visual_tokens=cached_visual_tokens,
            output_tokens=usage["output_tokens"],
            pictures=pictures,
        )

    @classmethod
    def of_drawing(cls, usage: Mapping[str, int]) -> Self:
        """`usage` of a report of `draw`."""
        return cls(text_tokens=usage["text_tokens"], drawn_pictures=usage["images"], token_passes=usage["token_passes"])

    @property
    def tokens(self) -> int:
        """Of prompt and answers."""
        prompt = self.text_tokens + self.visual_tokens + self.cached_text_tokens + self.cached_visual_tokens
        return prompt + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    currency: str
    amount: Decimal
    per_picture: Decimal | None  # drawn: all of it, by their number; read: what they add; None: there are none
    per_thousand_tokens: Decimal | None  # the amount by all tokens; None: nothing was read or answered

    def document(self) -> dict[str, Any]:
        """For JSON, whose numbers are read as decimals."""
        return {
            "currency": self.currency,
            "amount": float(self.amount),
            "per_picture": None if self.per_picture is None else float(self.per_picture),
            "per_thousand_tokens": None if self.per_thousand_tokens is None else float(self.per_thousand_tokens),
        }


def price(prices: Prices, used: Used) -> Price:
    """What the table asks for it."""
    texts = (
        _thousands(used.text_tokens, prices.per_thousand_text_tokens)
        + _thousands(used.cached_text_tokens, prices.per_thousand_cached_tokens)
        + _thousands(used.output_tokens, prices.per_thousand_output_tokens)
    )
    pictures = (
        _thousands(used.visual_tokens, prices.per_thousand_visual_tokens)
        + _thousands(used.cached_visual_tokens, prices.per_thousand_cached_tokens)
        + used.pictures * exact(prices.per_picture)
        + used.drawn_pictures * exact(prices.per_drawn_picture)
        + _thousands(used.token_passes, prices.per_million_token_passes) / 1000
    )
    amount = texts + pictures
    reads = used.output_tokens or used.pictures or not used.drawn_pictures
    return Price(
        currency=prices.currency,
        amount=amount,
        per_picture=_each(amount, used.drawn_pictures) if used.drawn_pictures else _each(pictures, used.pictures),
        per_thousand_tokens=_each(amount * 1000, used.tokens) if reads else None,
    )


@lru_cache(maxsize=64)  # a price list has seven rates
def exact(rate: float) -> Decimal:
    """The number as it stands in the file, not the binary one next to it."""
    return Decimal(repr(rate))


def _thousands(count: int, rate: float) -> Decimal:
    return count * exact(rate) / 1000 if count else NOTHING


def _each(amount: Decimal, count: int) -> Decimal | None:
    return (amount / count).quantize(RATE_DIGITS).normalize() if count else None
