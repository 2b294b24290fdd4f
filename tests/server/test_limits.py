"""A real server tells the limits that it enforces."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from proteus.client import Client
from proteus.deployment import Deployment
from proteus.launcher import Server
from proteus.limits_published import DrawContract, contract_of
from tests.server.conftest import DEMO
from tests.server.wire import document, error_of, png

# Pictures of a request that is just at the limit, and just outside.
PICTURES: Mapping[str, tuple[Callable[[int], list[bytes]], Callable[[int], list[bytes]]]] = {
    "max_side_px": (lambda limit: [png(limit, 600)], lambda limit: [png(limit + 1, 600)]),
    "min_side_px": (lambda limit: [png(limit, limit)], lambda limit: [png(limit, limit - 1)]),
    "max_pictures": (lambda limit: [png()] * limit, lambda limit: [png()] * (limit + 1)),
    "max_bytes": (lambda limit: [png().ljust(limit, b"\0")], lambda limit: [png().ljust(limit + 1, b"\0")]),
}


def test_contract_of_the_server_is_that_of_its_file(server: Server) -> None:
    deployment = Deployment.load(DEMO)
    drawn = DrawContract(draw=deployment.drawing.limits)
    with Client(server.ports.grpc_url) as client:
        told = client.contract()
    assert told == contract_of(deployment).model_dump(exclude_none=True) | drawn.model_dump(exclude_none=True)


@pytest.mark.parametrize("key", PICTURES)
def test_server_refuses_what_is_just_outside_of_the_number_it_tells(server: Server, key: str) -> None:
    url = server.ports.grpc_url
    with Client(url) as client:
        limit = client.contract()["image"][key]
    inside, outside = (pictures(limit) for pictures in PICTURES[key])
    assert error_of(url, document(pictures=len(inside), max_tokens=1), inside) == ""
    error = error_of(url, document(pictures=len(outside), max_tokens=1), outside)
    assert f"limit: [image] {key} = {limit:,};" in error
