"""When a server that drains has nothing open any more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from proteus.launcher.drain import QUIET_S, count_open_requests, drain
from proteus.launcher.ports import Ports


@dataclass
class Draining:
    """What is open at each second, by the last figure there is; None: nobody answers."""

    open: list[int | None]
    dies_at_s: float = 1e9
    answers: bool = True
    ports: Ports = Ports(http=1, grpc=2, metrics=3)
    now_s: float = 0.0
    began: list[float] = field(default_factory=list)

    def begin_drain(self) -> None:
        self.began.append(self.now_s)

    def count(self, _: Ports) -> int | None:
        return self.open[min(int(self.now_s), len(self.open) - 1)]

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.answers = self.now_s < self.dies_at_s

    def drain(self, at_least_s: float, at_most_s: float) -> bool:
        return drain(
            self,
            at_least_s=at_least_s,
            at_most_s=at_most_s,
            count_open=self.count,
            clock=lambda: self.now_s,
            wait=self.wait,
        )


@pytest.mark.parametrize(
    ("server", "at_least_s", "empty", "after_s"),
    [
        (Draining([0]), 0, True, QUIET_S),
        (Draining([0]), 2, True, 2 + QUIET_S),
        (Draining([3, 2, 1, 0]), 2, True, 3 + QUIET_S),
        (Draining([0, 1, 1, 0]), 0, True, 3 + QUIET_S),
        (Draining([0, None, None, None, 0]), 0, True, 4 + QUIET_S),
        (Draining([1]), 2, False, 30),
        (Draining([None]), 2, False, 30),
        (Draining([1], dies_at_s=5), 2, True, 5),
        (Draining([None], answers=False), 2, True, 0),
    ],
    ids=[
        "nothing is open",
        "who watches has not seen it yet",
        "the last one ends",
        "one comes late",
        "nobody tells",
        "one never ends",
        "nobody ever tells",
        "it dies, and what was open with it",
        "it is being started anew: nothing can be open",
    ],
)
def test_a_drain_ends_when_nothing_is_open_or_the_time_is_over(
    server: Draining, at_least_s: float, empty: bool, after_s: float
) -> None:
    assert server.drain(at_least_s, 30) is empty
    assert server.began == [0]
    assert server.now_s == pytest.approx(after_s, abs=0.41)


PAGE = b"""# HELP proteus_open_requests Requests
proteus_open_requests 2
proteus_draw_open_requests 1
proteus_reserved{resource="requests"} 7
nv_inference_pending_request_count{model="chat",version="1"} 4
nv_inference_pending_request_count{model="llm",version="1"} 0
proteus_gateway_open_requests 9
"""


@pytest.fixture
def port() -> Iterator[int]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_what_is_open_is_what_the_doors_have_and_what_waits_for_a_model(port: int) -> None:
    assert count_open_requests(Ports(http=1, grpc=1, metrics=port)) == 7


def test_nobody_who_answers_is_not_nothing_that_is_open() -> None:
    assert count_open_requests(Ports(http=1, grpc=1, metrics=1)) is None
