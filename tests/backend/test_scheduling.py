from __future__ import annotations

import json

import pytest

from proteus.backend.scheduling import read_scheduling, write_scheduling
from proteus.errors import InvalidRequest
from proteus.language.generation import Scheduling


def test_everything_may_be_left_out() -> None:
    assert read_scheduling(b"{}", 5.0) == Scheduling()


def test_a_deadline_is_read_from_now_on() -> None:
    document = {"cache_scope": "s", "tenant": "t", "latency_class": "batch", "deadline_ms": 1_500}
    expected = Scheduling(cache_scope="s", tenant="t", latency_class="batch", deadline_s=11.5)
    assert read_scheduling(json.dumps(document).encode(), 10.0) == expected


def test_who_names_no_tenant_is_known_by_the_cache_scope() -> None:
    assert read_scheduling(b'{"cache_scope": "s"}', 0.0).tenant == "s"


def test_what_is_written_is_read_as_it_was() -> None:
    scheduling = Scheduling(cache_scope="ä\n", tenant="t", latency_class="media", deadline_s=12.0)
    assert read_scheduling(write_scheduling(scheduling, 10.0), 10.0) == scheduling


def test_a_deadline_that_is_over_has_a_millisecond_left() -> None:
    late = write_scheduling(Scheduling(deadline_s=1.0), 10.0)
    assert read_scheduling(late, 10.0).deadline_s == 10.001


def test_a_deadline_that_lies_as_far_as_a_request_may_say_is_read() -> None:
    """The door takes milliseconds up to 2**63."""
    far = read_scheduling(write_scheduling(Scheduling(deadline_s=(2**63 - 1) / 1e3), 10.0), 10.0)
    assert far.deadline_s is not None and far.deadline_s > 1e12


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (b"{", ["scheduling is not JSON"]),
        (b"\xff", ["scheduling is not JSON"]),
        (b"[]", ["scheduling = []", "object"]),
        (b'{"colour": 1}', ["unknown field scheduling.colour", "known are cache_scope, tenant"]),
        (b'{"cache_scope": 1}', ["scheduling.cache_scope = 1", "valid string"]),
        (b'{"latency_class": "first"}', ['scheduling.latency_class = "first"', "'text', 'media' or 'batch'"]),
        (b'{"deadline_ms": 0}', ["scheduling.deadline_ms = 0", "greater than or equal to 1"]),
        (b'{"deadline_ms": 1e400}', ["scheduling.deadline_ms"]),
        (json.dumps({str(number): 1 for number in range(200)}).encode(), ["scheduling has 200 mistakes"]),
    ],
)
def test_a_mistake_is_named(document: bytes, words: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_scheduling(document, 0.0)
    for word in [*words, "fix: "]:
        assert word in str(caught.value)
    assert len(str(caught.value)) < 400
