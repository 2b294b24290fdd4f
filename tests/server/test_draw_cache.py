"""Triton's response cache in front of the text encoder: hits within one cache scope, and never across two."""

from __future__ import annotations

from typing import Any

import pytest
import tritonclient.grpc as triton

from proteus.client import Client
from proteus.launcher import Server
from tests.server.test_draw import PROMPT, files

OWN = "the blue square on green"  # no other test's
FIRST: dict[str, Any] = {"seed": 1, "steps": 2, "negative_prompt": "white background", "tenant": "a"}


def hits_and_misses(server: Server) -> tuple[int, int]:
    with triton.InferenceServerClient(server.ports.grpc_url) as asked:
        (stats,) = asked.get_inference_statistics("text_encoder").model_stats
    return stats.inference_stats.cache_hit.count, stats.inference_stats.cache_miss.count


@pytest.mark.parametrize(
    ("change", "hits", "misses"),
    [
        ({}, 2, 0),
        ({"seed": 2, "steps": 3, "sampler": "heun", "size": "48x32", "n": 2}, 2, 0),
        ({"tenant": "b"}, 2, 0),  # a scope is what separates; a tenant is only who pays
        ({"guidance": 1.0}, 1, 0),
        ({"negative_prompt": "green"}, 1, 1),
        ({"cache_scope": "second"}, 0, 2),
        ({"cache_scope": ""}, 0, 2),
    ],
    ids=["the same", "other settings", "other tenant", "one branch", "other negative", "other scope", "no scope"],
)
def test_texts_are_encoded_once_in_each_scope(
    draw_server: Server, change: dict[str, Any], hits: int, misses: int
) -> None:
    first = FIRST | {"cache_scope": f"scope of {change}"}
    with Client(draw_server.ports.grpc_url) as client:
        client.draw(OWN, **first)
        before = hits_and_misses(draw_server)
        client.draw(OWN, **first | change)
        after = hits_and_misses(draw_server)
    assert (after[0] - before[0], after[1] - before[1]) == (hits, misses)


def test_a_picture_of_cached_texts_is_that_of_encoded_ones(draw_server: Server) -> None:
    with Client(draw_server.ports.grpc_url) as client:
        scopes = ["encoded", "encoded", "other"]
        drawn = [files(client.draw(PROMPT, seed=4, steps=5, cache_scope=scope)) for scope in scopes]
    assert drawn[0] == drawn[1] == drawn[2]
