"""A collector of traces: OTLP over HTTP, as JSON."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Spans = list[dict[str, Any]]
ARRIVE_WITHIN_S = 30.0


class Collector:
    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: Spans = []

    def until(self, holds: Callable[[Spans], bool]) -> Spans:
        """All spans, once it holds of them, or when that took too long."""
        last_s = time.monotonic() + ARRIVE_WITHIN_S
        while not holds(list(self.spans)) and time.monotonic() < last_s:
            time.sleep(0.05)
        return list(self.spans)


@contextmanager
def collecting() -> Iterator[Collector]:
    """Listens on a free port of the loopback interface."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            for resource in body["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    collector.spans.extend(scope["spans"])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}/v1/traces")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
