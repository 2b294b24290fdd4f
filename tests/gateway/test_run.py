"""`proteus gateway` as a process: how it starts, refuses to start, is crowded, and ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from proteus.cli.commands import app
from tests.client.peer import Peer
from tests.gateway.running import DEMO
from tests.gateway.wire import ASKED, connect, eventually, request, status_of, told

ROOT = DEMO.parents[1]
ROOM, UPLOADS, ATTEMPTS = 1_024, 1_000, 10_000
HELD_BYTES = 50_000  # of each of those that stand still
AT_ONCE = 1_500  # of those that knock: this process has files of its own
MOST_GROWTH_BYTES = 192 << 20
NEVER = {"model": "demo", "messages": [{"role": "user", "content": "never end"}], "stream": True}


class Process:
    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self.popen = popen
        assert popen.stdout is not None
        self.lines = [popen.stdout.readline().split() for _ in range(3)]

    @property
    def url(self) -> str:
        return self.lines[0][1]

    @property
    def metrics_url(self) -> str:
        return self.lines[1][1]

    def memory_bytes(self) -> int:
        pages = Path(f"/proc/{self.popen.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def metric(self, name: str) -> float:
        text = httpx.get(self.metrics_url, timeout=30).text
        return next(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


@contextmanager
def gateway(peer: Peer, folder: Path, *changes: tuple[str, str]) -> Iterator[Process]:
    """The command, with the demo's file changed here and there."""
    text = DEMO.read_text()
    for old, new in (*changes, ('"../', f'"{ROOT}/')):
        assert old in text
        text = text.replace(old, new)
    file = folder / "deployment.toml"
    file.write_text(text)
    words = ["gateway", "--deployment", str(file), "--port", "0", "--metrics-port", "0", "--server", peer.url]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "proteus.cli", *words], stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT
        ) as popen,
    ):
        try:
            yield Process(popen)
        finally:
            popen.kill()


def test_it_tells_where_it_listens_and_ends_well_on_a_signal(peer: Peer, tmp_path: Path) -> None:
    with gateway(peer, tmp_path) as process:
        assert [line[0] for line in process.lines] == ["gateway", "metrics", "stop"]
        assert httpx.post(f"{process.url}/v1/chat/completions", json=ASKED, timeout=30).status_code == 200
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(20) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_second_signal_ends_it_at_once(peer: Peer, tmp_path: Path) -> None:
    peer.cancelled.clear()
    with gateway(peer, tmp_path) as process, connect(process.url) as one:
        one.sendall(request(NEVER))
        assert status_of(one.recv(65_536)) == 200
        process.popen.send_signal(signal.SIGTERM)
        while status_of(told(process.url, b"GET /health/ready HTTP/1.0\r\n\r\n")) != 503:
            pass
        assert process.popen.poll() is None  # it waits for the stream
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(20) == 0
    assert "1 requests were open and are ended" in (tmp_path / "log").read_text()


def asked(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["gateway", "--port", "0", "--metrics-port", "0", *words])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--host", "0.0.0.0"], "nobody would be asked for a key"),
        (["--host", "::"], "nobody would be asked for a key"),
        (["--server", "nowhere"], "--server nowhere is no address"),
        (["--server", "a:1,b"], "--server a:1,b is no address"),
        (["--server", "a:99999"], "--server a:99999 is no address"),
        (["--metrics-host", "192.0.2.1"], "of 192.0.2.1 cannot be had"),
    ],
)
def test_what_it_cannot_start_with_is_told_in_a_line(words: list[str], says: str) -> None:
    status, output = asked(*words)
    assert (status, output.count("\n")) == (1, 1)
    assert says in output


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, output = asked("--port", str(taken.getsockname()[1]))
    assert status == 1
    assert "Address already in use" in output


async def knock(port: int, times: int) -> Counter[int]:
    """As many clients, a request each; status by how many got it, 0 for a connection that broke."""
    room = asyncio.Semaphore(AT_ONCE)
    seen: Counter[int] = Counter()

    async def one() -> None:
        async with room:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    writer.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    seen[status_of(await reader.read(4_096))] += 1
                finally:
                    writer.transport.abort()
            except OSError:
                seen[0] += 1

    await asyncio.gather(*(one() for _ in range(times)))
    return seen


@pytest.mark.slow
def test_ten_thousand_connections_are_as_many_as_there_is_room_for(peer: Peer, tmp_path: Path) -> None:
    """A thousand uploads stand still; the others are told at once that there is no room."""
    changes = (
        ("max_connections = 4_096", f"max_connections = {ROOM}"),
        ("max_open_requests = 1_024", f"max_open_requests = {2 * ROOM}"),
        ("header_timeout_ms = 5_000", "header_timeout_ms = 120_000"),  # ten thousand clients in one process are slow
        ("body_idle_timeout_ms = 10_000", "body_idle_timeout_ms = 120_000"),
        ("body_timeout_ms = 60_000", "body_timeout_ms = 120_000"),
    )
    sent = request({"model": "demo", "messages": "a" * 2 * HELD_BYTES})[:HELD_BYTES]
    with gateway(peer, tmp_path, *changes) as process, ExitStack() as open_ones:
        httpx.post(f"{process.url}/v1/chat/completions", json=ASKED, timeout=30)
        before_bytes = process.memory_bytes()
        for _ in range(UPLOADS):
            open_ones.enter_context(connect(process.url)).sendall(sent)
        seen = asyncio.run(knock(int(process.url.rpartition(":")[2]), ATTEMPTS))
        assert set(seen) <= {200, 503, 0}
        assert seen[503] > ATTEMPTS / 2
        assert process.metric("proteus_gateway_connections ") >= UPLOADS
        assert process.metric("proteus_gateway_open_bytes") > UPLOADS * HELD_BYTES * 0.9
        assert process.metric('proteus_gateway_connections_refused_total{reason="connections"}') >= seen[503]
        assert httpx.post(f"{process.url}/v1/chat/completions", json=ASKED, timeout=30).status_code == 200
        assert process.memory_bytes() - before_bytes < MOST_GROWTH_BYTES
        open_ones.close()
        eventually(lambda: process.metric("proteus_gateway_open_bytes") == 0)
    assert (tmp_path / "log").read_text().count("\n") < 20
