"""What the gateway tells of a request beside OpenAI's fields, in the object `proteus` of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proteus.cost.price import Price
from proteus.gateway.order import Order, Visit

TOLD = ("usage", "ingress_ms", "ttft_ms", "inter_token_ms", "caches", "media", "pictures")  # of the server's report


def account(visit: Visit, order: Order, report: Mapping[str, Any], price: Price, **more: Any) -> dict[str, Any]:
    """`report` is the server's, as docs/contract.md tells it; `more` stands before what is told of it."""
    return {
        "request_id": visit.request_id,
        "model": order.model,
        "pool": order.pool,
        "latency_class": order.latency_class,
        **more,
        **({"moderation": visit.checks} if visit.checks else {}),
        "resources": dict(order.resources.named()),
        "price": price.document(),
        "stages_ms": stages_ms(visit, report["stages_ms"]),
        **{name: report[name] for name in TOLD if name in report},
    }


def stages_ms(visit: Visit, server_ms: Mapping[str, float]) -> dict[str, float]:
    """The gateway's own stages, the server's, `gateway` (what neither holds), and `total`, which they add up to."""
    own_ms = visit.watch.report_ms()
    total_ms = own_ms.pop("total")
    del own_ms["transfer"]
    stages = dict(own_ms)
    for name, ms in server_ms.items():
        if name != "total":  # both plan and queue a request to draw: theirs is the sum
            stages[name] = stages.get(name, 0.0) + ms
    held_ms = sum(stages.values())
    stages |= {"gateway": max(0.0, total_ms - held_ms), "total": max(total_ms, held_ms)}
    return {name: round(ms, 3) for name, ms in stages.items()}
