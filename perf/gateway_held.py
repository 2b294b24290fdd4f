"""What is only held: a thousand streams in which nothing comes, ten thousand connections that say nothing."""

from __future__ import annotations

import asyncio
import re
import resource
import socket
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from perf.gateway_http import CHAT, Connections, chat_body
from perf.gateway_servers import Started, changed, figures, gateway, rss_bytes
from perf.records import Record

STREAMS, CONNECTIONS, ASKED = 1_000, 10_000, 100
AT_ONCE, COUNTED = 50, 500  # are begun together; after so many it is asked how many are held
HOLD_S = 3.0
END_S = 20.0
KIB = 2**10
HELD = "held"
CAPACITY = {
    "requests": "1100",
    "max_queue": "1100",
    "max_waiting": "1100",
    "max_open_requests": "1200",
}  # a stand-in has room for all
Say = Callable[[str], None]


def measure(folder: Path, command: str, say: Say) -> list[Record]:
    """In front of a stand-in: a real server would need keys and values for each stream."""
    _many_files()
    with ExitStack() as stack:
        silent = Started(["-m", "perf.gateway_silent"], folder / "silent.log")
        stack.callback(silent.end)
        deployment = changed(folder / "held.toml", **CAPACITY)
        found = []
        for what, measured in ((f"{STREAMS:,} streams", _streams), (f"{CONNECTIONS:,} connections", _crowd)):
            say(what)
            front = gateway(folder, silent, deployment=deployment)
            try:
                found += asyncio.run(measured(front, command))
            finally:
                front.end()
        return found


async def _streams(front: Started, command: str) -> list[Record]:
    url = f"http://{front.addresses['gateway']}"
    async with Connections(url) as connections:
        await _asked(connections, ASKED)
        quiet_ms = await _asked(connections, ASKED)
        before = rss_bytes(front.pid)
        held = [pair for _ in range(STREAMS // AT_ONCE) for pair in await _begin(url)]
        busy_ms = await _asked(connections, ASKED)
        await asyncio.sleep(HOLD_S)
        open_, after = _open(front), rss_bytes(front.pid)
        cut = sum(reader.at_eof() for reader, _ in held)
        for _, writer in held:
            writer.close()
        left = await _until_empty(front)
    return [
        Record(
            name="streams/held",
            value=open_,
            unit="streams",
            baseline=STREAMS,
            command=command,
            note=f"each had its first word; {cut} were cut; {left:.0f} requests were open after all had left",
        ),
        _each("streams/memory", after - before, len(held), command),
        _asked_record("streams/asked", busy_ms, quiet_ms, command, f"while {STREAMS:,} streams were held"),
    ]


async def _begin(url: str) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    return await asyncio.gather(*(_stream(url) for _ in range(AT_ONCE)))


async def _stream(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """One whose first word has come."""
    host, _, port = url.rpartition("/")[2].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = chat_body("Say something later.", None, 64, stream=True)
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await reader.readuntil(b"Well")
    return reader, writer


async def _asked(connections: Connections, times: int) -> list[float]:
    took = []
    for _ in range(times):
        begun_s = time.monotonic()
        async for _ in connections.ask(chat_body("Say it now.", None, 1, stream=False)):
            pass
        took.append((time.monotonic() - begun_s) * 1e3)
    return took


async def _crowd(front: Started, command: str) -> list[Record]:
    url = f"http://{front.addresses['gateway']}"
    host, _, port = url.rpartition("/")[2].partition(":")
    crowd: list[socket.socket] = []
    async with Connections(url) as connections:
        await _asked(connections, ASKED)
        quiet_ms = await _asked(connections, ASKED)
        before = rss_bytes(front.pid)
        most_held = 0.0
        for _ in range(CONNECTIONS):
            one = socket.create_connection((host, int(port)))
            one.setblocking(False)
            crowd.append(one)
            if len(crowd) % COUNTED == 0:
                most_held = max(most_held, figures(front, "connections")[""])
        memory, busy_ms = rss_bytes(front.pid) - before, await _asked(connections, ASKED)
        told = Counter(_status(one) for one in crowd)
        for one in crowd:
            one.close()
    others = ", ".join(f"{count:,} {status}" for status, count in told.most_common())
    return [
        Record(
            name="connections/held",
            value=most_held,
            unit="connections",
            baseline=CONNECTIONS,
            command=command,
            note=f"at once, of one address; in the end {others}",
        ),
        _each("connections/memory", memory, max(1, round(most_held)), command),
        _asked_record("connections/asked", busy_ms, quiet_ms, command, "while they were there"),
    ]


def _status(one: socket.socket) -> str:
    try:
        found = re.match(rb"HTTP/1\.1 (\d+)", one.recv(64))
    except BlockingIOError:
        return HELD
    except ConnectionError:
        return "cut off"
    return f"refused with {found[1].decode()}" if found else "closed"


def _each(name: str, memory_bytes: int, count: int, command: str) -> Record:
    return Record(name=name, value=memory_bytes / count / KIB, unit="KiB", command=command, note="of each, resident")


def _asked_record(name: str, busy_ms: Sequence[float], quiet_ms: Sequence[float], command: str, note: str) -> Record:
    value, baseline = statistics.median(busy_ms), statistics.median(quiet_ms)
    note = f"{len(busy_ms)} requests, one after the other, {note}; without them the baseline"
    return Record(name=name, value=value, unit="ms", baseline=baseline, command=command, note=note)


async def _until_empty(front: Started) -> float:
    end_s = time.monotonic() + END_S
    while (left := _open(front)) and time.monotonic() < end_s:
        await asyncio.sleep(0.1)
    return left


def _open(front: Started) -> float:
    return figures(front, "open_requests")[""]


def _many_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
