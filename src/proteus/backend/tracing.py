"""Traces of a door's requests on their way to the collector that Triton sends its own to; off unless it is named."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from http.client import HTTPException
from typing import Any, Protocol, TypeVar

from proteus.backend.spans import Trace, document

URL_VARIABLE = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"  # OpenTelemetry's own name
SEND_S, TIMEOUT_S = 1.0, 5.0
MAX_WAITING = 1_000  # traces; the oldest are dropped


class Ended(Protocol):
    """How a request ended, once it has; `door.arrival.Ending` is one."""

    outcome: str
    stages_ms: Mapping[str, float]


Ending = TypeVar("Ending", bound=Ended)


class Tracing:
    """Of one door. `url` takes OTLP over HTTP as JSON; "" is off."""

    def __init__(self, model: str, url: str | None = None) -> None:
        self._model = model
        self._url = os.environ.get(URL_VARIABLE, "") if url is None else url
        self._waiting: deque[Trace] = deque(maxlen=MAX_WAITING)
        self._closed = threading.Event()
        self._reached = True
        self._thread: threading.Thread | None = None
        if self._url:
            self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
            self._thread.start()

    @contextmanager
    def request(self, request: Any, counted: AbstractContextManager[Ending]) -> Iterator[tuple[Ending, Trace | None]]:
        """The trace of one of Triton's requests; None where Triton does not trace it.

        It is sent once `counted` is over, which knows then how the request ended.
        """
        trace = _trace_of(request) if self._url else None
        begun_ns, ending = time.monotonic_ns(), None
        try:
            with counted as ending:
                yield ending, trace
        finally:
            if trace is not None and ending is not None:
                trace.close(self._model, (begun_ns, time.monotonic_ns()), ending.outcome, ending.stages_ms)
                self._waiting.append(trace)

    def close(self) -> None:
        """Send what waits, and no more."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(SEND_S):
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        traces = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not traces:
            return
        body = json.dumps(document(traces)).encode()
        asked = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(asked, timeout=TIMEOUT_S):
                self._reached = True
        except (OSError, HTTPException, ValueError) as error:
            if self._reached:  # once, not for every trace
                address = self._url.partition("?")[0]  # what follows may be a key
                logging.getLogger(__name__).warning("no traces reach %s: %s", address, error)
            self._reached = False


def _trace_of(request: Any) -> Trace | None:
    context = request.trace().get_context()  # JSON of W3C headers
    return Trace.beneath(json.loads(context).get("traceparent", "")) if context else None
