"""`proteus caches` against a page of figures as the server tells them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from typer.testing import CliRunner, Result

from proteus.admission.figures import Figure
from proteus.cache.figures import (
    ENCODER_CACHE_FIGURES,
    PROCESSOR_CACHE_FIGURES,
    EncoderCacheFigures,
    ProcessorCacheFigures,
)
from proteus.cache.shared import SharedFigures
from proteus.cache.store import StoreFigures
from proteus.cli import app
from proteus.cli.caches import read_states

PIXELS = StoreFigures(
    lookups=8, hits=2, collisions=0, held=6, held_bytes=3 << 20, max_bytes=32 << 20, evicted_for_room=1,
    evicted_by_age=4, saved_s=0.125,
)  # fmt: skip
TOKENS = StoreFigures(
    lookups=2000, hits=1500, collisions=0, held=9, held_bytes=9 << 10, max_bytes=64 << 20, evicted_for_room=0,
    evicted_by_age=0, saved_s=61.5,
)  # fmt: skip
SHARED = SharedFigures(
    outcomes={"hit": 100, "miss": 400, "rejected": 0, "lost": 2, "left_alone": 0, "written": 400, "not_written": 0},
    saved_s=4.0,
)
PREFIX = """# HELP proteus_prefix_cache_hits_total Prompts that found one
# TYPE proteus_prefix_cache_hits_total counter
proteus_prefix_cache_lookups_total 0
proteus_prefix_cache_hits_total 0
proteus_prefix_cache_bytes{state="held"} 0
proteus_prefix_cache_bytes{state="allocated"} 0
proteus_prefix_cache_evicted_total{reason="room"} 0
proteus_prefix_cache_saved_seconds -0.25
nv_cache_num_hits_per_model{model="text_encoder"} 7
"""


def page(rows: tuple[Figure, ...], figures: ProcessorCacheFigures | EncoderCacheFigures) -> str:
    """As Prometheus writes it."""
    lines = []
    for row in rows:
        for label, value in figures.values(row.name).items():
            lines.append(f'{row.name}{{{row.label}="{label}"}} {value}' if label else f"{row.name} {value:.6g}")
    return "\n".join(lines) + "\n"


PAGE = (
    page(ENCODER_CACHE_FIGURES, EncoderCacheFigures(store=TOKENS, shared=SHARED))
    + page(PROCESSOR_CACHE_FIGURES, ProcessorCacheFigures(store=PIXELS))
    + PREFIX
)


@contextmanager
def serving(text: str, status: int = 200) -> Iterator[str]:
    """host:port of an HTTP server that says `text` to everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def caches(*words: str) -> Result:
    return CliRunner().invoke(app, ["caches", *words])


@pytest.mark.parametrize("address", ["{}", "http://{}", "http://{}/metrics"])
def test_the_three_caches_are_one_table(address: str) -> None:
    with serving(PAGE) as url:
        result = caches("--metrics-url", address.format(url))
    assert result.exit_code == 0, result.stderr
    lines = [" ".join(line.split()) for line in result.stdout.splitlines() if line.strip()]
    assert lines[0] == "cache lookups hits rate held of evicted saved"
    assert lines[2:] == [
        "processor 8 2 25% 3.0 MiB 32.0 MiB 5 0.12 s",
        "encoder 2,000 1,600 80% 9 KiB 64.0 MiB 0 65.50 s",
        "prefix 0 0 0 KiB off 0 -0.25 s",
        "Redis: 100 hit, 400 miss, 2 lost, 400 written",
    ]


def test_the_document_has_every_figure() -> None:
    with serving(PAGE) as url:
        processor, encoder, prefix = json.loads(caches("--metrics-url", url, "--json").stdout)
    assert (processor["cache"], processor["saved_s"], processor["evicted"]) == (
        "processor",
        0.125,
        {"room": 1, "age": 4},
    )
    assert (encoder["hits"], encoder["hit_rate"]) == (1600, 0.8)
    assert encoder["hits_by_source"] == {"local": 1500, "redis": 100}
    assert encoder["redis"]["left_alone"] == 0
    assert (prefix["hit_rate"], prefix["saved_s"], prefix["redis"]) == (None, -0.25, {})


def test_what_rounds_to_nothing_has_no_sign() -> None:
    with serving(PREFIX.replace("-0.25", "-0.0001")) as url:
        assert " 0.00 s" in caches("--metrics-url", url).stdout


def test_a_server_that_tells_of_fewer_is_read_too() -> None:
    assert [state.cache for state in read_states(PREFIX)] == ["prefix"]


@pytest.mark.parametrize(
    ("text", "status", "said", "code"),
    [
        ("nv_gpu_utilization 0\n", 200, "tells of no cache", 2),
        ("", 404, "no metrics port of Triton: HTTP 404", 1),
    ],
)
def test_what_is_no_metrics_port_is_told_in_a_line(text: str, status: int, said: str, code: int) -> None:
    with serving(text, status) as url:
        result = caches("--metrics-url", url)
    assert (result.exit_code, result.stderr.count("\n")) == (code, 1)
    assert said in result.stderr


@pytest.mark.parametrize(
    ("address", "said", "code"),
    [
        ("127.0.0.1:1", "is the server running? give as --metrics-url", 1),
        ("file:///etc/passwd", "is no address", 2),
        ("localhost", "is no address", 2),
        ("user@host:80/x", "is no address", 2),
    ],
)
def test_an_address_that_is_none_is_told_in_a_line(address: str, said: str, code: int) -> None:
    result = caches("--metrics-url", address)
    assert (result.exit_code, result.stderr.count("\n")) == (code, 1)
    assert said in result.stderr
