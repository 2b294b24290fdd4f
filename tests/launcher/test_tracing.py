from __future__ import annotations

from pathlib import Path

import pytest

from proteus.launcher import LaunchFailed, Tracing

URL = "http://127.0.0.1:4318/v1/traces"


def test_nothing_is_traced_unless_it_is_asked_for() -> None:
    assert Tracing().arguments() == []
    assert Tracing().environment() == {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": ""}, "nor by what is inherited"


def test_a_collector_is_named_to_triton_and_to_the_doors() -> None:
    tracing = Tracing(url=URL, rate=10)
    assert {f"--trace-config=opentelemetry,url={URL}", "--trace-config=rate=10"} <= set(tracing.arguments())
    assert "--trace-config=mode=opentelemetry" in tracing.arguments()
    assert tracing.environment() == {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL}


def test_a_file_is_for_triton_alone() -> None:
    arguments = Tracing(file=Path("/var/trace.json")).arguments()
    assert {"--trace-config=mode=triton", "--trace-config=triton,file=/var/trace.json"} <= set(arguments)


@pytest.mark.parametrize(
    ("given", "named"), [({"url": URL, "file": Path("x")}, "not both"), ({"url": URL, "rate": 0}, "1 or more")]
)
def test_what_cannot_be_is_refused(given: dict[str, object], named: str) -> None:
    with pytest.raises(LaunchFailed, match=named):
        Tracing(**given)  # type: ignore[arg-type]
