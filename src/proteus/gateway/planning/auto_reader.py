"""The model `auto`: looks at a question and its pictures' headers, and has another model plan it by the rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from proteus.cost.price import exact
from proteus.cost.vector import ResourceVector
from proteus.door.pictures import Picture
from proteus.door.prepare import Parsed
from proteus.door.request import ChatRequest, PictureContent
from proteus.door.seats import Seat
from proteus.errors import InvalidRequest, MediaTooLarge, ProteusError
from proteus.gateway.order import Tenant, Visit
from proteus.gateway.planning.auto import Choice, Decision, choices, kind_of
from proteus.gateway.planning.reader import WHOLE, Beginnings, Reader, Reading
from proteus.limits import shown
from proteus.limits_gateway import AutoRule

AUTO = "auto"
Affords = Callable[[Tenant, ResourceVector], bool]  # whether that is left of a tenant's budget now; nothing is held


class AutoReader:
    """For one event loop. What is asked of it has to be within the full model's limits."""

    name = AUTO

    def __init__(self, full: Reader, light: Reader | None, rule: AutoRule, affords: Affords) -> None:
        self._full, self._light, self._rule, self._affords = full, light, rule, affords
        self.limits, self.created_s = full.limits, full.created_s

    async def plan(self, visit: Visit, request: ChatRequest, seat: Seat, beginnings: Beginnings = WHOLE) -> Reading:
        """By the first choice that can be planned and afforded, else by the cheapest that can be planned.

        Raises as `Reader.plan` does.
        """
        parsed = self._full.look(visit, request, beginnings)
        pictures = await self._full.pictures(parsed, seat)
        cheapest: Reading | None = None
        refusal: ProteusError | None = None
        too_dear = ""
        for choice in self._choices(request, pictures):
            try:
                reading = await self._planned(choice, parsed, pictures)
            except (InvalidRequest, MediaTooLarge) as error:
                refusal = refusal or error
                continue
            if cheapest is None or reading.price.amount < cheapest.price.amount:
                cheapest = reading
            if not (dear := self._too_dear(visit, reading)):
                return _told(reading, too_dear)
            too_dear = too_dear or dear
        if cheapest is None:
            raise refusal or LookupError("the rule of auto has no choice")
        return _told(cheapest, too_dear)

    def _choices(self, request: ChatRequest, pictures: tuple[Picture, ...]) -> list[Choice]:
        free = [picture for picture, named in zip(pictures, names_tier(request), strict=True) if not named]
        return list(
            choices(
                kind_of(request),
                [picture.header.upright_px for picture in pictures],
                [picture.header.upright_px for picture in free],
                self._rule,
                auto_max_pixels=self._full.limits.tiers.auto.max_pixels,
                has_light=self._light is not None,
            )
        )

    async def _planned(self, choice: Choice, parsed: Parsed, pictures: tuple[Picture, ...]) -> Reading:
        reader = self._light if choice.light and self._light is not None else self._full
        named = names_tier(parsed.request)
        given = tuple(
            picture if is_named or choice.tier is None else replace(picture, tier=choice.tier)
            for picture, is_named in zip(pictures, named, strict=True)
        )
        reading = await reader.with_pictures(parsed, given)
        return replace(reading, auto=Decision(model=reader.name, tier=choice.tier, because=choice.because))

    def _too_dear(self, visit: Visit, reading: Reading) -> str:
        most = self._rule.max_price
        if 0 < exact(most) < reading.price.amount:
            return f"dearer than [gateway.auto] max_price = {shown(most)}"
        if not self._affords(visit.whose, reading.prepared.resources):
            return "more than is left of the budget"
        return ""


def _told(reading: Reading, too_dear: str) -> Reading:
    """Where the price took part in it, or nothing was cheap enough, it says so."""
    if reading.auto is None or not too_dear:
        return reading
    return replace(reading, auto=replace(reading.auto, because=f"{reading.auto.because}; the first was {too_dear}"))


def names_tier(request: ChatRequest) -> tuple[bool, ...]:
    """Of each picture, whether its part says which tier it is to have."""
    parts = [part for message in request.messages for part in message.pictures()]
    return tuple(
        "detail" in (part if isinstance(part, PictureContent) else part.image_url).model_fields_set for part in parts
    )
