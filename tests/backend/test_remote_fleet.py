"""Which encoder a door asks, by its deployment file and its hardware."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proteus.backend.remote_figures import ENCODER_POOL_FIGURES
from proteus.deployment import Deployment
from proteus.limits_gpu import EncoderPool
from tests.backend import triton

DEMO = Deployment.load(Path(__file__).parents[2] / "deployments" / "demo.toml")
POOL = EncoderPool(url="127.0.0.1:1", timeout_ms=1, max_at_once=1)
NAMES = ("proteus.backend.tensors", "proteus.backend.calls", "proteus.backend.collector", "proteus.backend.models")


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setitem(sys.modules, triton.MODULE, triton.module())
    yield importlib.import_module(NAMES[-1]).TritonFleet
    for name in NAMES:
        del sys.modules[name]


def name_of(fleet: Any, deployment: Deployment, hardware: str) -> str:
    asked = fleet.of(deployment, hardware).encoder()
    with pytest.raises(StopIteration) as ended:  # it waits for nothing
        asked.send(None)
    return str(ended.value.value)


def test_a_server_that_encodes_by_itself_names_its_hardware(fleet: Any) -> None:
    gpu = DEMO.gpu
    assert gpu is not None
    other = gpu.model_copy(update={"vision_encoder": gpu.vision_encoder.model_copy(update={"precision": "fp8"})})
    names = [
        name_of(fleet, DEMO, "cpu"),
        name_of(fleet, DEMO, "gpu"),
        name_of(fleet, DEMO.model_copy(update={"gpu": other}), "gpu"),
    ]
    assert names[0] == ""
    assert len(set(names)) == 3


def test_a_server_with_an_encoder_pool_tells_its_figures_and_any_other_none(fleet: Any) -> None:
    pooled = DEMO.model_copy(update={"encoder_pool": POOL})
    ((rows, values),) = fleet.of(pooled, "cpu").figures()
    assert all(row.name.startswith("proteus_encoder_pool_") for row in rows)
    for row in rows:
        assert all(value >= 0 for value in values().values(row.name).values())
    assert list(fleet.of(DEMO, "cpu").figures()) == []


@pytest.mark.parametrize("figure", ENCODER_POOL_FIGURES, ids=lambda figure: figure.name)
def test_the_page_of_the_encoder_pool_tells_every_figure_and_its_label(figure: Any) -> None:
    page = (Path(__file__).parents[2] / "docs" / "encoder_pool.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{figure.name}` |"))
    assert not figure.label or f"`{figure.label}`" in row
