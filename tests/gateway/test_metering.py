"""The metering log: a line for each request of a tenant, never its content, whatever becomes of the disk."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from proteus.cli.commands import app
from proteus.cost.vector import ResourceVector
from proteus.deployment import DeploymentError
from proteus.gateway.order import Order, Tenant, Visit
from proteus.gateway.tenancy import metering as metering_module
from proteus.gateway.tenancy.meter_files import MeterFiles
from proteus.gateway.tenancy.metering import Metering
from proteus.limits_gateway import Metering as Settings

NOON = datetime(2026, 11, 30, 12, 0, 0, 250_000, tzinfo=UTC)
USAGE = {"text_tokens": 9, "visual_tokens": 36, "output_tokens": 3, "cached_tokens": 8}


def files_of(folder: Path, *, max_bytes: int = 1 << 20, max_files: int = 4) -> MeterFiles:
    return MeterFiles(Settings(path="log/meter.jsonl", max_bytes=max_bytes, max_files=max_files), folder)


def visit_of(tenant: str | None = "acme", **changed: Any) -> Visit:
    visit = Visit(path="/v1/chat/completions", address="203.0.113.9", status=200)
    if tenant is not None:
        visit.tenant = Tenant(name=tenant, key="laptop", cache_scope=tenant)
    for name, value in changed.items():
        setattr(visit, name, value)
    return visit


def served(tenant: str = "acme", price: float = 0.25) -> Visit:
    visit = visit_of(tenant, price=price, server="127.0.0.1:8001", retries=1)
    visit.report = {"usage": USAGE, "stages_ms": {"prefill": 12.0, "total": 19.75}, "caches": {"prefix": {"hits": 1}}}
    assert visit.tenant is not None
    visit.order = Order(
        message="SECRET PROMPT",
        door="chat",
        model="demo",
        pool="picture",
        tenant=visit.tenant,
        request_id=visit.request_id,
        latency_class="media",
        resources=ResourceVector(requests=1, visual_tokens=36),
        price=1.0,
    )
    with visit.watch.stage("plan"):
        pass
    return visit


class Log:
    def __init__(self, folder: Path, **settings: int) -> None:
        self.folder = folder
        self.metering = Metering(files_of(folder, **settings), "EUR", now=lambda: NOON)
        self.metering.start()

    def lines(self) -> list[dict[str, Any]]:
        """Of all files, oldest first, once everything is written."""
        self.metering.close()
        paths = sorted((self.folder / "log").iterdir(), key=lambda path: (path.name == "meter.jsonl", path.name))
        return [json.loads(line) for path in paths for line in path.read_text().splitlines() if line]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    started = Log(tmp_path)
    yield started
    started.metering.close()


def test_a_line_tells_all_that_was_used_and_nothing_of_the_content(log: Log) -> None:
    visit = served()
    visit.user_hash = "abc"
    log.metering.ended(visit)
    (line,) = log.lines()
    stages_ms = line.pop("stages_ms")
    assert list(stages_ms) == ["plan", "transfer", "total"]
    assert line == {
        "time": "2026-11-30T12:00:00.250Z",
        "request_id": visit.request_id,
        "tenant": "acme",
        "key": "laptop",
        "endpoint": "/v1/chat/completions",
        "model": "demo",
        "pool": "picture",
        "latency_class": "media",
        "server": "127.0.0.1:8001",
        "retries": 1,
        "outcome": "served",
        "status": 200,
        "resources": {"requests": 1, "visual_tokens": 36},
        "usage": USAGE,
        "price": {"currency": "EUR", "amount": 0.25},
        "server_stages_ms": {"prefill": 12.0, "total": 19.75},
        "caches": {"prefix": {"hits": 1}},
        "user_hash": "abc",
    }
    text = (log.folder / "log" / "meter.jsonl").read_text()
    assert "SECRET" not in text and "203.0.113.9" not in text


def test_a_refused_request_has_a_line_and_one_without_a_tenant_none(log: Log) -> None:
    log.metering.ended(visit_of(outcome="over_budget", status=429))
    log.metering.ended(visit_of(None, outcome="invalid_api_key", status=401))
    (line,) = log.lines()
    assert (line["outcome"], line["status"], line["usage"], line["resources"]) == ("over_budget", 429, {}, {})
    assert log.metering.figures() == {"lines": 1, "errors": 0}


def test_a_path_is_shortened_and_stays_one_line(log: Log) -> None:
    log.metering.ended(visit_of(path="/v1/models/\n\x1b[2J" + "x" * 10_000))
    (line,) = log.lines()
    assert len(line["endpoint"]) <= 120 and "\x1b" not in line["endpoint"] and "\n" not in line["endpoint"]


def test_what_is_summed_up_for_metrics_is_what_stands_in_the_log(log: Log) -> None:
    for tenant in ("acme", "bolt", "acme"):
        log.metering.ended(served(tenant))
    log.metering.ended(visit_of(outcome="queue_full"))
    usage = log.metering.usage()
    assert usage["acme", "requests"] == 3 and usage["bolt", "output_tokens"] == 3
    assert usage["acme", "visual_tokens"] == 72
    assert log.metering.prices() == {("acme", "EUR"): 0.5, ("bolt", "EUR"): 0.25}
    assert len(log.lines()) == 4


def test_without_a_file_there_are_sums_and_no_thread() -> None:
    metering = Metering(None, "EUR")
    metering.start()
    metering.ended(served())
    metering.close()
    assert metering.usage()["acme", "requests"] == 1
    assert not any(thread.name == "metering" for thread in threading.enumerate())


def test_only_its_owner_reads_it(log: Log) -> None:
    assert stat.S_IMODE((log.folder / "log" / "meter.jsonl").stat().st_mode) == 0o600


def test_a_full_file_gets_its_time_as_name_and_the_oldest_are_removed(tmp_path: Path) -> None:
    log = Log(tmp_path, max_bytes=2000, max_files=3)
    (tmp_path / "log" / "meter-notes-Z.jsonl").write_text("not ours")
    ids = []
    for _ in range(40):
        visit = visit_of()
        ids.append(visit.request_id)
        log.metering.ended(visit)
    log.metering.close()
    paths = sorted((tmp_path / "log").glob("meter-2*.jsonl"))
    assert len(paths) == 2
    assert all(path.stat().st_size <= 2000 for path in (*paths, tmp_path / "log" / "meter.jsonl"))
    assert (tmp_path / "log" / "meter-notes-Z.jsonl").read_text() == "not ours"
    kept = [
        json.loads(line)["request_id"]
        for path in (*paths, tmp_path / "log" / "meter.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert kept == ids[-len(kept) :]
    assert log.metering.figures() == {"lines": 40, "errors": 0}


def test_two_gateways_share_a_log_and_lose_no_line(tmp_path: Path) -> None:
    logs = [Log(tmp_path, max_bytes=3000, max_files=1000) for _ in range(2)]
    for number in range(60):
        logs[number % 2].metering.ended(visit_of())
        if number % 7 == 0:
            logs[0].metering.close()
            logs[0].metering.start()
    logs[1].metering.close()
    lines = logs[0].lines()
    assert len(lines) == len({line["request_id"] for line in lines}) == 60


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    path = tmp_path / "log" / "meter.jsonl"
    for move in (True, False):
        files.add(b"{}\n")
        files.flush()
        if move:
            path.rename(tmp_path / "moved")
        else:
            path.unlink()
    files.add(b"[]\n")
    files.close()
    assert path.read_bytes() == b"[]\n" and (tmp_path / "moved").read_bytes() == b"{}\n"


def test_what_comes_after_a_torn_line_begins_a_line(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "meter.jsonl").write_text('{"time": "20')
    log = Log(tmp_path)
    log.metering.ended(served())
    log.metering.close()
    torn, whole = (tmp_path / "log" / "meter.jsonl").read_text().splitlines()
    assert torn == '{"time": "20' and json.loads(whole)["tenant"] == "acme"


def test_a_part_that_the_disk_took_is_a_torn_line_and_what_comes_later_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = os.write, [10]

    def nearly_full(fd: int, content: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken, left[0] = min(left[0], len(content)), max(0, left[0] - len(content))
        return write(fd, content[:taken])

    monkeypatch.setattr(os, "write", nearly_full)
    files = files_of(tmp_path)
    files.add(b'{"a": "long enough"}\n')
    with pytest.raises(OSError, match="No space"):
        files.flush()
    files.forget()
    left[0] = 1000
    files.add(b"{}\n")
    files.close()
    assert (tmp_path / "log" / "meter.jsonl").read_bytes() == b'{"a": "lon\n{}\n'
    assert files.num_lines == 1


class FullDisk:
    """`os.write`, once told to, fails as a full disk does."""

    def __init__(self) -> None:
        self.is_full = False
        self.tried = threading.Event()
        self._write = os.write

    def __call__(self, fd: int, content: bytes) -> int:
        if self.is_full and content.startswith(b"{"):
            self.tried.set()
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._write(fd, content)


def test_a_full_disk_is_told_once_and_counted_and_stops_nothing(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk()
    monkeypatch.setattr(os, "write", disk)
    disk.is_full = True
    for _ in range(3):
        disk.tried.clear()
        log.metering.ended(served())
        assert disk.tried.wait(30)
    while log.metering.figures()["errors"] < 3:
        threading.Event().wait(0.01)
    disk.is_full = False
    log.metering.ended(served())
    assert len(log.lines()) == 1
    assert log.metering.figures() == {"lines": 1, "errors": 3}
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING]
    assert "No space left on device" in caplog.text


def test_a_full_queue_loses_lines_and_never_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering_module, "MAX_WAITING", 5)
    log = Log(tmp_path)
    stuck = threading.Lock()
    write = os.write

    def slow(fd: int, content: bytes) -> int:
        with stuck:
            return write(fd, content)

    monkeypatch.setattr(os, "write", slow)
    with stuck:
        for _ in range(50):
            log.metering.ended(served())
    lines = log.lines()
    figures = log.metering.figures()
    assert figures["errors"] > 0 and len(lines) == figures["lines"] == 50 - figures["errors"]


def test_a_place_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file, not a folder")
    metering = Metering(files_of(tmp_path), "EUR")
    with pytest.raises(DeploymentError, match=r"\[gateway.metering\] path: .*meter.jsonl cannot be written"):
        metering.start()


def told(*words: str) -> tuple[str, str]:
    result = CliRunner().invoke(app, ["usage", *words])
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


@pytest.mark.parametrize(
    ("by", "expected"), [("tenant", {"acme": 3, "bolt": 1}), ("model", {"": 1, "demo": 3}), ("day", {"2026-11-30": 4})]
)
def test_usage_adds_up_every_file(by: str, expected: dict[str, int], tmp_path: Path) -> None:
    log = Log(tmp_path, max_bytes=1500, max_files=9)
    for visit in (served(), served("bolt", price=0.1), visit_of(outcome="queue_full"), served(price=0.2)):
        log.metering.ended(visit)
    log.metering.close()
    paths = [str(path) for path in (tmp_path / "log").iterdir()]
    assert len(paths) > 1
    sums = json.loads(told(*paths, "--by", by, "--json")[0])
    assert {name: one["requests"] for name, one in sums.items()} == expected
    if by == "tenant":
        assert sums["acme"] == {
            "requests": 3,
            "served": 2,
            "outcomes": {"served": 2, "queue_full": 1},
            "usage": {
                "text_tokens": 18,
                "visual_tokens": 72,
                "cached_tokens": 16,
                "output_tokens": 6,
                "images": 0,
                "evaluations": 0,
                "token_passes": 0,
            },
            "prices": {"EUR": 0.45},
        }
        assert "0.450000 EUR" in told(*paths)[0]


def test_usage_passes_over_lines_that_are_none(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.metering.ended(served())
    log.lines()
    path = tmp_path / "log" / "meter.jsonl"
    broken = b'{"time": "20\n[]\n"x"\n\xff\xfe\n{}\n' + b'{"n": ' + b"9" * 10_000 + b"}\n" + b"[" * 100_000 + b"\n"
    path.write_bytes(broken + path.read_bytes() + b"\n" + path.read_bytes()[:40])
    out, err = told(str(path), "--json")
    assert json.loads(out)["acme"]["requests"] == 1
    assert "8 lines cannot be read" in err
