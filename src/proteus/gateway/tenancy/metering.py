"""What is written down of every request of a tenant: one line of JSON, and sums for metrics. Never its content.

Lines go through a bounded queue to one thread: a full disk or a slow one loses lines, which is counted, and never time.
They are bytes by then: a thread that wrote JSON would hold the interpreter while requests want it.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from proteus.deployment import Deployment, DeploymentError
from proteus.door.document import shorten
from proteus.gateway.order import Visit
from proteus.gateway.tenancy.meter_files import MeterFiles
from proteus.limits_gateway import Gateway as Settings

MAX_WAITING = 10_000  # lines
MAX_BATCH = 500  # lines in one write
GATHER_S = 0.05  # that a line waits for others: each turn of the thread takes the interpreter from requests
STOP_S = 10.0  # that the last lines may take
# Of a report's `usage`, what adds up over requests.
SUMMED = ("text_tokens", "visual_tokens", "cached_tokens", "output_tokens", "images", "evaluations", "token_passes")
ENCODER = json.JSONEncoder(separators=(",", ":"))
log = logging.getLogger(__name__)


class Metering:
    """`files` None: sums alone. Raises DeploymentError where the first file cannot be opened."""

    def __init__(
        self, files: MeterFiles | None, currency: str, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._files, self._currency, self._now = files, currency, now
        self._lines: queue.Queue[bytes | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._usage: Counter[tuple[str, str]] = Counter()  # (tenant, resource) -> used
        self._price: dict[str, float] = {}  # tenant -> of what was used
        self._errors = 0
        self._is_failing = False

    def start(self) -> None:
        """Raises DeploymentError."""
        if self._files is None:
            return
        try:
            self._files.open()
        except OSError as error:
            raise DeploymentError(
                f"[gateway.metering] path: {self._files.path} cannot be written ({error.strerror})",
                fix="give a path that can be, or leave the table out",
            ) from error
        self._thread = threading.Thread(target=self._write_all, name="metering", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """When all lines are written, or STOP_S later."""
        if self._thread is None:
            return
        try:
            self._lines.put(None, timeout=STOP_S)
        except queue.Full:
            log.error("metering: %d lines are lost", self._lines.qsize())
        self._thread.join(STOP_S)
        self._thread = None

    def ended(self, visit: Visit) -> None:
        """Of a request with a tenant, refused ones too; never waits."""
        if visit.tenant is None:
            return
        self._add_up(visit.tenant.name, visit)
        if self._thread is None:
            return
        try:
            self._lines.put_nowait(_written(line_of(visit, self._currency, self._now())))
        except queue.Full:
            self._lost(1, "its queue is full")

    def figures(self) -> Mapping[str, int]:
        return {"lines": 0 if self._files is None else self._files.num_lines, "errors": self._errors}

    def usage(self) -> Mapping[tuple[str, str], int]:
        """(tenant, resource) -> used since the start."""
        return dict(self._usage)

    def prices(self) -> Mapping[tuple[str, str], float]:
        """(tenant, currency) -> price of what was used since the start."""
        return {(tenant, self._currency): price for tenant, price in self._price.items()}

    def _add_up(self, tenant: str, visit: Visit) -> None:
        self._usage[tenant, "requests"] += 1
        self._price[tenant] = self._price.get(tenant, 0.0) + visit.price
        used = {} if visit.report is None else visit.report.get("usage", {})
        for name in SUMMED:
            if number := used.get(name, 0):
                self._usage[tenant, name] += number

    def _write_all(self) -> None:
        while True:
            lines = self._batch()
            if lines and lines[-1] is None:
                self._write([line for line in lines if line is not None])
                self._close_files()
                return
            self._write([line for line in lines if line is not None])

    def _batch(self) -> list[bytes | None]:
        """One at least; nothing after the last."""
        lines = [self._lines.get()]
        if lines[-1] is not None:
            time.sleep(GATHER_S)
        while len(lines) < MAX_BATCH and lines[-1] is not None:
            try:
                lines.append(self._lines.get_nowait())
            except queue.Empty:
                break
        return lines

    def _write(self, lines: list[bytes]) -> None:
        files = self._files
        if files is None or not lines:
            return
        before = files.num_lines
        try:
            for line in lines:
                files.add(line)
            files.flush()
        except OSError as error:
            files.forget()
            self._lost(len(lines) - (files.num_lines - before), str(error))
        else:
            if self._is_failing:
                log.warning("metering: lines are written again")
            self._is_failing = False

    def _lost(self, number: int, why: str) -> None:
        """Told once, until lines are written again."""
        self._errors += number
        if not self._is_failing:
            self._is_failing = True
            log.error("metering: lines are lost: %s", why)

    def _close_files(self) -> None:
        try:
            if self._files is not None:
                self._files.close()
        except OSError as error:
            log.error("metering: the file could not be closed: %s", error)


def metering_of(deployment: Deployment, settings: Settings) -> Metering:
    """Without [gateway.metering] there are sums and no lines."""
    table = settings.metering
    files = None if table is None else MeterFiles(table, deployment.path.parent)
    return Metering(files, settings.prices.currency)


def line_of(visit: Visit, currency: str, now: datetime) -> dict[str, Any]:
    """What is known of a request when it has ended. Of what a client sent, nothing stands here but its path."""
    order, tenant = visit.order, visit.tenant
    report = visit.report or {}
    line = {
        "time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "request_id": visit.request_id,
        "tenant": "" if tenant is None else tenant.name,
        "key": "" if tenant is None else tenant.key,
        "endpoint": shorten(visit.path),
        "model": "" if order is None else order.model,
        "pool": "" if order is None else order.routed_pool,
        "latency_class": "" if order is None else order.latency_class,
        "server": visit.server,
        "retries": visit.retries,
        "outcome": visit.outcome,
        "status": visit.status,
        "resources": {} if order is None else {name: value for name, value in order.resources.named() if value},
        "usage": report.get("usage", {}),
        "price": {"currency": currency, "amount": visit.price},
        "stages_ms": visit.watch.report_ms(),
        "server_stages_ms": report.get("stages_ms", {}),
        "caches": report.get("caches", {}),
    }
    return line | {name: value for name in ("moderation", "user_hash") if (value := getattr(visit, name))}


def _written(line: Mapping[str, Any]) -> bytes:
    return ENCODER.encode(line).encode() + b"\n"
