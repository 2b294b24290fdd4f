"""Triton's own traces: to an OpenTelemetry collector, or to files of its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from proteus.launcher.failure import LaunchFailed

URL_VARIABLE = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"  # read by the doors, which send spans of their own

SEND_MS = 1000  # from one batch of spans to the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """Off without `url` and `file`. One request in `rate` is traced."""

    url: str | None = None  # takes OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces
    file: Path | None = None  # prefix of one file for each trace: `<file>.0`, `<file>.1` …
    rate: int = 1

    def __post_init__(self) -> None:
        if self.url and self.file:
            raise LaunchFailed("traces to a collector and to a file", fix="give a URL or a file, not both")
        if self.rate < 1:
            raise LaunchFailed(f"a trace rate of {self.rate}", limit="1 or more", fix="1 traces every request")

    def arguments(self) -> list[str]:
        """Of tritonserver's command line."""
        if self.url:
            details = (f"url={self.url}", "resource=service.name=proteus", f"bsp_schedule_delay={SEND_MS}")
            own = ["mode=opentelemetry", *(f"opentelemetry,{detail}" for detail in details)]
        elif self.file is not None:
            # A file at the end, Triton's default, is never written: it does not outlive the exit timeout.
            own = ["mode=triton", f"triton,file={self.file.resolve()}", "triton,log-frequency=1"]
        else:
            return []
        settings = [*own, "level=TIMESTAMPS", f"rate={self.rate}", "count=-1"]
        return [f"--trace-config={setting}" for setting in settings]

    def environment(self) -> Mapping[str, str]:
        """What the doors need to know."""
        return {URL_VARIABLE: self.url or ""}


OFF = Tracing()
