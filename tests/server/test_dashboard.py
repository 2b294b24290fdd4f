"""What a real server tells, against what the dashboard, the alerts and the autoscaling ask for."""

from __future__ import annotations

import re
import urllib.request

import pytest

from proteus.client import Client
from proteus.door.observed import HISTOGRAMS
from proteus.launcher import Server
from tests.docker.known_metrics import TRITON, declared, known
from tests.server.figures import until

SERIES = re.compile(r"^(\w+)(?:\{(.*)\})? \S+$", re.MULTILINE)
# Told once there is something to tell: a refusal, a picture, a question to Redis.
AFTER_AN_EVENT = {
    "proteus_refused_total",
    "proteus_draw_refused_total",
    "proteus_visual_tokens_total",
    "proteus_encoder_cache_redis_total",
}
LABEL = re.compile(r'(\w+)="')


@pytest.fixture(scope="module")
def page(server: Server) -> str:
    """After a question and a drawing."""
    with Client(server.ports.grpc_url) as client:
        client.ask("hello", max_tokens=2)
        client.draw("a red circle", size="64x64", steps=2)
    for name in ("proteus_draw_images_total", "proteus_stub_memory_bytes"):  # the latter is told every 10 s
        assert until(server, lambda now, name=name: any(told.startswith(name) for told in now))
    with urllib.request.urlopen(server.ports.metrics_url, timeout=10) as response:
        return str(response.read().decode())


@pytest.mark.parametrize("name", sorted(TRITON))
def test_a_series_of_tritons_is_there(page: str, name: str) -> None:
    assert f"# TYPE {name} " in page


def test_every_series_has_the_labels_that_we_think(page: str) -> None:
    names = known()
    told: dict[str, set[str]] = {}
    for name, labels in SERIES.findall(page):
        told.setdefault(name, set()).update(LABEL.findall(labels))
    wrong = {name: labels - names[name] for name, labels in told.items() if name in names and labels - names[name]}
    assert wrong == {}
    ours = {name for name in told if name.startswith("proteus_")}
    assert ours <= set(names), "a family that no dashboard knows of"


def test_every_family_that_is_declared_is_told(page: str) -> None:
    families = set(re.findall(r"^# TYPE (proteus_\w+) ", page, re.MULTILINE))
    elsewhere = {name for name in declared() if name.startswith("proteus_encoder_pool_")}
    missing = {*declared(), *(histogram.name for histogram in HISTOGRAMS)} - elsewhere - families
    assert missing <= AFTER_AN_EVENT
