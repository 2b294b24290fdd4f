"""`proteus health`: what it says and by which exit code, of servers in every state and of what is no server."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from proteus.cli.commands import app

READY = {
    "ready": True,
    "live": True,
    "reasons": [],
    "models": {"chat": True, "llm": True},
    "stubs": {"chat": 1, "llm": 2},
    "restarts": 0,
    "version": "0.1.0",
}
RESTARTING = {**READY, "ready": False, "reasons": ["the server is restarting"], "restarts": 1}
GIVEN_UP = {**READY, "ready": False, "live": False, "reasons": ["the launcher has given up"], "restarts": 5}


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """Address of a server that says this to everybody."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            """Nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def told(url: str, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["health", "--url", url, *options])
    return result.exit_code, result.output.strip()


@pytest.mark.parametrize(
    ("condition", "options", "expected"),
    [
        (READY, [], (0, "ready: 2 models, 3 stubs")),
        (READY, ["--live"], (0, "alive")),
        (RESTARTING, [], (1, "not ready: the server is restarting, 1 restart so far")),
        (RESTARTING, ["--live"], (0, "alive, 1 restart so far")),
        (GIVEN_UP, [], (1, "not ready: the launcher has given up, 5 restarts so far")),
        (GIVEN_UP, ["--live"], (1, "not alive: the launcher has given up, 5 restarts so far")),
    ],
)
def test_a_line_and_an_exit_code(condition: dict[str, Any], options: list[str], expected: tuple[int, str]) -> None:
    with answering(json.dumps(condition).encode()) as url:
        assert told(url, *options) == expected
        assert told(f"http://{url}/", *options) == expected


@pytest.mark.parametrize("condition", [READY, RESTARTING])
def test_json_is_all_that_the_port_tells(condition: dict[str, Any]) -> None:
    with answering(json.dumps(condition).encode()) as url:
        code, output = told(url, "--json")
    assert (code, json.loads(output)) == (0 if condition["ready"] else 1, condition)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"ready": true}', b"\xff\xfe"])
def test_what_is_no_health_port_is_called_so(body: bytes) -> None:
    with answering(body) as url:
        assert told(url) == (1, f"what answers at {url} is no health port of proteus")


def test_control_characters_of_a_stranger_are_not_printed() -> None:
    with answering(json.dumps({**RESTARTING, "reasons": ["\x1b[2J gone"]}).encode()) as url:
        assert "\x1b" not in told(url)[1]


@pytest.mark.parametrize(
    ("url", "words", "code"),
    [
        ("127.0.0.1", "is no address: give host:port", 2),
        ("https://127.0.0.1:8080", "is no address", 2),
        ("127.0.0.1:8080/ready", "is no address", 2),
        ("127.0.0.1:1", "nothing answers at 127.0.0.1:1", 1),
        ("127.0.0.1:99999", "nothing answers at 127.0.0.1:99999", 1),
    ],
)
def test_an_address_that_leads_nowhere(url: str, words: str, code: int) -> None:
    exit_code, output = told(url)
    assert (exit_code, words in output) == (code, True)
