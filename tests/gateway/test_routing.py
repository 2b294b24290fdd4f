"""What a client sees of a fleet in which a server fails: as little as can be."""

from __future__ import annotations

import httpx
import pytest

from tests.client.peer import Peer
from tests.gateway.routing import QUICK, breaks, peers
from tests.gateway.running import in_front_of, running


def asked(url: str, *, stream: bool) -> httpx.Response:
    messages = [{"role": "user", "content": "one two three"}]
    body = {"model": "demo", "messages": messages, "stream": stream}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30)


@pytest.mark.parametrize(("after", "stream"), [(0, True), (0, False), (2, False)])
def test_a_server_that_breaks_before_anything_was_sent_is_not_seen(after: int, stream: bool) -> None:
    with peers(2) as (bad, good), running(in_front_of(bad.url, good.url, routing=QUICK)) as url:
        bad.script = breaks(after)
        answer = asked(url, stream=stream)
        assert answer.status_code == 200
        assert answer.text.count("three") == 1
        assert "half" not in answer.text
        assert (bad.asked(), good.asked()) == (1, 1)


def test_a_stream_that_breaks_midway_ends_with_an_error_that_says_so() -> None:
    with peers(2) as (bad, good), running(in_front_of(bad.url, good.url, routing=QUICK)) as url:
        bad.script = breaks(after=2)
        answer = asked(url, stream=True)
        assert answer.status_code == 200
        assert '"code":"unavailable"' in answer.text
        assert "the server went away before the answer was complete" in answer.text
        assert good.asked() == 0


def test_without_a_server_a_client_is_told_when_to_come_back() -> None:
    peer = Peer()
    peer.stop()
    with running(in_front_of(peer.url, routing={**QUICK, "suspect_ms": 2_000})) as url:
        answer = asked(url, stream=False)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert answer.json()["error"]["code"] == "unavailable"
