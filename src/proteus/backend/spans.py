"""The spans of one request of a door, beneath the span that Triton has of it, as OpenTelemetry's JSON.

Triton 2.51 has let go of a decoupled request's trace before the door calls its first model, and reads freed memory
when it is handed to the call (docs/tracing.md): so a door tells its spans itself. They carry no text of anybody.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from proteus.errors import InternalError, ProteusError
from proteus.stages import MS, Span

TRACEPARENT = re.compile(r"00-(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})-[0-9a-f]{2}")
SPAN_ID_BYTES = 8
INTERNAL, FAILED = 1, 2  # OpenTelemetry's numbers of a kind and of a status
GONE = "cancelled"
Attribute = str | int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    name: str
    span: Span
    span_id: str
    parent_id: str
    attributes: Mapping[str, Attribute]
    error: str  # its code; "" for none


class Trace:
    """Of one request; what calls of it take is added while it lasts."""

    def __init__(self, trace_id: str, parent_id: str) -> None:
        self.trace_id, self._parent_id = trace_id, parent_id
        self.root_id = _span_id()
        self._recorded: list[Recorded] = []

    @staticmethod
    def beneath(traceparent: str) -> Trace | None:
        """`traceparent` as W3C Trace Context writes it; None where it is not of its version 00."""
        found = TRACEPARENT.fullmatch(traceparent)
        return None if found is None else Trace(found["trace"], found["parent"])

    @contextmanager
    def during(self, name: str) -> Iterator[str]:
        """Record the block as a span; gives its id, for spans beneath it."""
        span_id, begun_ns, error = _span_id(), time.monotonic_ns(), ""
        try:
            yield span_id
        except BaseException as raised:
            error = raised.code if isinstance(raised, ProteusError) else _name_of(raised)
            raise
        finally:
            span = begun_ns, time.monotonic_ns()
            self._record(name, span, span_id=span_id, parent_id=self.root_id, error=error)

    def add(self, name: str, span: Span, parent_id: str) -> None:
        """A span that was measured elsewhere; one whose times are not known is left out."""
        if span[1]:
            self._record(name, span, span_id=_span_id(), parent_id=parent_id)

    def close(self, model: str, span: Span, outcome: str, stages_ms: Mapping[str, float]) -> None:
        """The request is over: its own span, with `ingress` and `admission` up to its first call."""
        calls = [one.span[0] for one in self._recorded if one.parent_id == self.root_id]
        end_ns = begun_ns = min(calls, default=span[0])
        for stage in ("admission", "ingress"):
            if stage in stages_ms:
                begun_ns = end_ns - int(stages_ms[stage] * MS)
                self.add(stage, (begun_ns, end_ns), self.root_id)
                end_ns = begun_ns
        self._record(
            f"{model} request",
            (min(begun_ns, span[0]), span[1]),
            span_id=self.root_id,
            parent_id=self._parent_id,
            attributes={"proteus.outcome": outcome, **{f"proteus.{name}_ms": ms for name, ms in stages_ms.items()}},
        )

    def spans(self) -> Iterator[Mapping[str, Any]]:
        """In OpenTelemetry's JSON, at the wall clock's times."""
        wall_ns = time.time_ns() - time.monotonic_ns()
        for one in self._recorded:
            yield {
                "traceId": self.trace_id,
                "spanId": one.span_id,
                "parentSpanId": one.parent_id,
                "name": one.name,
                "kind": INTERNAL,
                "startTimeUnixNano": str(wall_ns + one.span[0]),
                "endTimeUnixNano": str(wall_ns + one.span[1]),
                "attributes": [_attribute(name, value) for name, value in one.attributes.items()],
                "status": {"code": FAILED, "message": one.error} if one.error else {},
            }

    def _record(
        self,
        name: str,
        span: Span,
        *,
        span_id: str,
        parent_id: str,
        attributes: Mapping[str, Attribute] | None = None,
        error: str = "",
    ) -> None:
        self._recorded.append(
            Recorded(
                name=name, span=span, span_id=span_id, parent_id=parent_id, attributes=attributes or {}, error=error
            )
        )


def document(traces: Sequence[Trace]) -> Mapping[str, Any]:
    """What a collector is sent."""
    spans = [span for trace in traces for span in trace.spans()]
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [_attribute("service.name", "proteus")]},
                "scopeSpans": [{"scope": {"name": "proteus"}, "spans": spans}],
            }
        ]
    }


def _attribute(name: str, value: Attribute) -> Mapping[str, Any]:
    kind = {str: "stringValue", int: "intValue", float: "doubleValue"}[type(value)]
    return {"key": name, "value": {kind: str(value) if isinstance(value, int) else value}}


def _name_of(raised: BaseException) -> str:
    return InternalError.code if isinstance(raised, Exception) else GONE


def _span_id() -> str:
    return secrets.token_hex(SPAN_ID_BYTES)
