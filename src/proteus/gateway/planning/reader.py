"""A checkpoint that answers, as the gateway sees it: what a question to it comes to, planned by the door's own code.

ChatRequest → Parsed → (Fetcher) → Prepared → Reading → Order. Pictures by URL are fetched here, and sent on as bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from proteus.admission.ask import Ask, refuse_what_never_fits
from proteus.client.request import build_request
from proteus.contract import CHAT
from proteus.cost.planner import Planner
from proteus.cost.price import Price, Used, price
from proteus.deployment import Deployment
from proteus.door.pictures import Picture, Source, accept
from proteus.door.prepare import Parsed, Preparation, Prepared
from proteus.door.request import AnyPicture, ChatRequest
from proteus.door.seats import Seat
from proteus.errors import InvalidRequest
from proteus.families.llava import LlavaFamily
from proteus.gateway.order import Order, Visit, left_ms
from proteus.gateway.planning.auto import Decision
from proteus.language.kv_slots import KV_VALUE_BYTES
from proteus.language.prompt import Prompt, PromptRenderer
from proteus.limits_gateway import PoolName, Prices
from proteus.manifest import MANIFEST, Manifest
from proteus.media.fetch import Fetcher
from proteus.stages import Timeline

SENT_ON = tuple(name for name in ChatRequest.model_fields if name not in ("messages", "deadline_ms", "sent"))
Beginnings = Mapping[int, int]  # index of a picture of which only the first bytes are there -> bytes of the whole file
WHOLE: Beginnings = {}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """A question to one model, known to the last token."""

    model: str  # that answers, whatever name was asked for
    light: bool
    revision: str  # of its checkpoint
    context_tokens: int  # of the model: prompt and answer together
    prepared: Prepared
    price: Price  # the most that it can come to
    auto: Decision | None = None  # where `auto` was asked for
    prices: Prices

    @property
    def pool(self) -> PoolName:
        return "picture" if self.prepared.pictures else "text"

    def price_of(self, report: Mapping[str, Any]) -> Price:
        """Of what was used, by the server's report."""
        usage = report["usage"]
        cached = visual_tokens_of_first(self.prepared.prompt, usage["cached_tokens"])
        used = Used.of_answer(usage, pictures=len(report.get("media", ())), cached_visual_tokens=cached)
        return price(self.prices, used)

    def order(self, visit: Visit) -> Order:
        """Ready to be sent."""
        return _order(self, visit)


class Reader:
    """Raises DeploymentError or UnsupportedCheckpoint. For one event loop."""

    def __init__(self, deployment: Deployment, prices: Prices, *, light: bool = False) -> None:
        self.name, self.limits, self.light = deployment.name, deployment, light
        self._prices = prices
        family = LlavaFamily.from_checkpoint(deployment.checkpoint_path)
        manifest = Manifest.load(deployment.repository_path)
        self.created_s = int((deployment.repository_path / MANIFEST).stat().st_mtime)
        self.revision = manifest.revision
        self._preparation = Preparation(
            deployment,
            Planner(family=family, tiers=deployment.tiers, kv_value_bytes=KV_VALUE_BYTES),
            PromptRenderer.from_checkpoint(deployment.checkpoint_path),
            Fetcher(deployment.fetch, deployment.image.max_bytes),
            vocab_size=manifest.vocab_size,
        )

    def look(self, visit: Visit, request: ChatRequest, beginnings: Beginnings = WHOLE) -> Parsed:
        """Raises InvalidRequest and MediaTooLarge."""
        parsed = self._preparation.looked_at(request, (), visit.deadline_s(request.deadline_ms))
        if not beginnings:
            return parsed
        places = enumerate(parsed.places)
        return replace(parsed, places=tuple(_begun(place, index, beginnings.get(index)) for index, place in places))

    async def plan(self, visit: Visit, request: ChatRequest, seat: Seat, beginnings: Beginnings = WHOLE) -> Reading:
        """`seat` is told of what URLs may bring. Raises what the door raises before it asks for capacity."""
        parsed = self.look(visit, request, beginnings)
        return self._reading(await self._preparation.prepare(parsed, seat, Timeline()))

    async def pictures(self, parsed: Parsed, seat: Seat) -> tuple[Picture, ...]:
        """Fetched, within the contract, their headers read. Raises as `plan` does."""
        return await self._preparation.pictures(parsed, seat, Timeline()) if parsed.places else ()

    async def with_pictures(self, parsed: Parsed, pictures: tuple[Picture, ...]) -> Reading:
        """What was looked at, by this model or another, with these pictures in its places. Raises as `plan` does."""
        parsed.request.check(self.limits.text)
        self._preparation.looked_at(parsed.request, (), parsed.deadline_s)
        for number, picture in enumerate(pictures, start=1):
            accept(picture, number, self.limits.image)
        return self._reading(await self._preparation.planned(parsed, pictures, Timeline()))

    async def again(self, reading: Reading, pictures: Mapping[int, bytes], seat: Seat) -> Reading:
        """The same question with other bytes for some of its pictures, by their index. Raises as `plan` does."""
        prepared = reading.prepared
        places = tuple(
            Source(tier=picture.tier, attached=pictures.get(index, picture.data))
            for index, picture in enumerate(prepared.pictures)
        )
        parsed = Parsed(request=prepared.request, places=places, deadline_s=prepared.deadline_s)
        return replace(self._reading(await self._preparation.prepare(parsed, seat, Timeline())), auto=reading.auto)

    def _reading(self, prepared: Prepared) -> Reading:
        """Raises MediaTooLarge for what no empty server would take."""
        ask = Ask(vector=prepared.resources, latency_class=prepared.latency_class, tenant="", model=CHAT.name)
        refuse_what_never_fits(ask, self.limits.admission, table="admission")
        return Reading(
            model=self.name,
            light=self.light,
            revision=self.revision,
            context_tokens=self.limits.llm.context_tokens,
            prepared=prepared,
            price=price(self._prices, Used.at_most(prepared.resources)),
            prices=self._prices,
        )


def _begun(place: Source, index: int, file_bytes: int | None) -> Source:
    if file_bytes is not None and place.url is not None:
        raise InvalidRequest(
            f"picture {index + 1}: total_bytes of a picture by URL", fix="leave total_bytes out: it is fetched whole"
        )
    return replace(place, file_bytes=file_bytes)


def visual_tokens_of_first(prompt: Prompt, num_tokens: int) -> int:
    """How many of the first tokens of a prompt are visual: the prefix cache gives those that stand first."""
    return sum(max(0, min(start + length, num_tokens) - start) for start, length in prompt.visual_spans)


def _order(reading: Reading, visit: Visit) -> Order:
    prepared, tenant = reading.prepared, visit.whose
    request = prepared.request
    fields = {name: getattr(request, name) for name in SENT_ON if name in request.model_fields_set}
    fields |= {"request_id": visit.request_id, "tenant": tenant.name, "cache_scope": tenant.cache_scope}
    return Order(
        message=build_request(
            _messages(prepared),
            [picture.data for picture in prepared.pictures],
            fields | left_ms(prepared.deadline_s),  # type: ignore[arg-type]
        ),
        door="chat",
        model=reading.model,
        pool=reading.pool,
        light=reading.light,
        tenant=tenant,
        request_id=visit.request_id,
        latency_class=prepared.latency_class,
        resources=prepared.resources,
        price=float(reading.price.amount),
        deadline_s=prepared.deadline_s,
    )


def _messages(prepared: Prepared) -> list[dict[str, Any]]:
    """Texts as they are; each picture is taken from those beside the document, in its tier."""
    tiers = iter(picture.tier for picture in prepared.pictures)
    return [
        {
            "role": message.role,
            "content": [
                {"type": "image", "detail": next(tiers)}
                if isinstance(part, AnyPicture)
                else {"type": "text", "text": part.text}
                for part in message.parts()
            ],
        }
        for message in prepared.request.messages
    ]
