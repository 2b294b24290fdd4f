"""A checkpoint that draws, as the gateway sees it: what a request to it comes to, planned by the door's own code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from proteus.admission.ask import Ask, refuse_what_never_fits
from proteus.client.draw_request import build_draw
from proteus.contract_draw import DRAW
from proteus.cost.price import Price, Used, price
from proteus.deployment import Deployment
from proteus.door.draw_plan import DrawPlan, DrawPlanner
from proteus.door.draw_request import DrawRequest
from proteus.door.draw_text import PromptTokenizer
from proteus.gateway.order import Order, Visit, left_ms
from proteus.limits_gateway import Prices
from proteus.manifest import DRAW_MANIFEST, DrawManifest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sketch:
    """A request to draw, known to the last evaluation."""

    model: str
    plan: DrawPlan
    price: Price  # the most that it can come to
    prices: Prices

    def price_of(self, report: dict[str, Any]) -> Price:
        """Of what was used, by the server's report."""
        return price(self.prices, Used.of_drawing(report["usage"]))

    def order(self, visit: Visit) -> Order:
        """Ready to be sent. The seed is chosen here, so that a second server would draw the same."""
        return _order(self, visit)


class Artist:
    """Raises DeploymentError or UnsupportedCheckpoint. For one event loop, which it hardly holds: prompts are short."""

    def __init__(self, deployment: Deployment, prices: Prices, *, name: str) -> None:
        drawing = deployment.drawing
        self.name, self.limits, self._prices = name, drawing.limits, prices
        manifest = DrawManifest.load(deployment.repository_path)
        self.created_s = int((deployment.repository_path / DRAW_MANIFEST).stat().st_mtime)
        self.revision = manifest.revision
        tokenizer = PromptTokenizer.from_checkpoint(drawing.checkpoint_path, manifest.text_inputs)
        self._planner = DrawPlanner(drawing.limits, manifest, tokenizer)

    def plan(self, visit: Visit, request: DrawRequest) -> Sketch:
        """Raises InvalidRequest, PromptTooLong, or MediaTooLarge for what no empty server would take."""
        plan = self._planner.plan(request, visit.deadline_s(request.deadline_ms))
        ask = Ask(vector=plan.resources, latency_class=plan.latency_class, tenant="", model=DRAW.name)
        refuse_what_never_fits(ask, self.limits.admission, table="draw.admission")
        most = price(self._prices, Used.at_most(plan.resources))
        return Sketch(model=self.name, plan=plan, price=most, prices=self._prices)


def _order(sketch: Sketch, visit: Visit) -> Order:
    plan, tenant = sketch.plan, visit.whose
    fields = plan.request.model_dump(exclude_unset=True, exclude={"prompt", "deadline_ms"})
    fields |= {"seed": plan.pictures[0].seed, "request_id": visit.request_id}
    fields |= {"tenant": tenant.name, "cache_scope": tenant.cache_scope, **left_ms(plan.deadline_s)}
    return Order(
        message=build_draw(plan.request.prompt, fields),  # type: ignore[arg-type]
        door="draw",
        model=sketch.model,
        pool="draw",
        tenant=tenant,
        request_id=visit.request_id,
        latency_class=plan.latency_class,
        resources=plan.resources,
        price=float(sketch.price.amount),
        deadline_s=plan.deadline_s,
    )
