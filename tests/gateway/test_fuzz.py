"""The gateway by its own OpenAPI document: whatever schemathesis makes of it, nothing above 4xx comes back.

PROTEUS_FUZZ_EXAMPLES is for how long: `make test-gateway` takes more than the suite.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from tests.client.peer import Peer
from tests.gateway.running import in_front_of, running

EXAMPLES = int(os.environ.get("PROTEUS_FUZZ_EXAMPLES", "25"))
OPERATIONS = (
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/images/generations"),
    ("POST", "/v1/cost"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
    ("GET", "/v1/contract"),
)
# What breaks the document is made for those that take one; a path alone cannot break it.
TRIED = [(*one, GenerationMode.POSITIVE) for one in OPERATIONS]
TRIED += [(*one, GenerationMode.NEGATIVE) for one in OPERATIONS if one[0] == "POST"]


@pytest.fixture(scope="module")
def fuzzed(peer: Peer) -> Iterator[str]:
    with running(in_front_of(peer.url)) as url:
        yield url


@pytest.fixture(scope="module")
def document(fuzzed: str) -> Any:
    return httpx.get(f"{fuzzed}/openapi.json").json()


def test_every_operation_of_the_document_is_tried(document: Any) -> None:
    told = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert told == set(OPERATIONS)


# The gateway's own thread may ask for a random number while an example is made.
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")
@pytest.mark.parametrize(("method", "path", "mode"), TRIED)
def test_whatever_is_asked_the_answer_is_no_failure(
    document: Any, fuzzed: str, method: str, path: str, mode: GenerationMode
) -> None:
    operation = schemathesis.openapi.from_dict(document)[path][method]

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def is_answered(case: schemathesis.Case) -> None:
        answer = case.call(base_url=fuzzed, timeout=30)
        assert answer.status_code < 500, answer.text
        if answer.status_code >= 400:
            assert answer.json()["error"]["code"]

    is_answered()
