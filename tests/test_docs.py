"""Documents tell all of it: every error, metric, resource, family, decision and room has its words."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from perf.families import table
from proteus.admission.figures import FIGURES
from proteus.backend.memory import MEMORY_FIGURES
from proteus.backend.remote_figures import ENCODER_POOL_FIGURES
from proteus.cache.figures import ENCODER_CACHE_FIGURES, PROCESSOR_CACHE_FIGURES
from proteus.contract import CHAT, REQUEST_DOCUMENT
from proteus.contract_draw import DRAW_REQUEST_DOCUMENT
from proteus.cost.vector import NAMES
from proteus.deployment import Deployment
from proteus.door.draw_figures import FIGURES as DOOR_FIGURES
from proteus.door.draw_request import DrawRequest, Wish
from proteus.door.draw_request import document_limit as draw_document_limit
from proteus.door.named import StopRequest, StopTarget
from proteus.door.observed import HISTOGRAMS
from proteus.door.request import ChatRequest, document_limit
from proteus.errors import ProteusError
from proteus.families.table import KNOWN
from proteus.gateway.gateway import Gateway
from proteus.generation.figures import DRAW_FIGURES
from proteus.language.figures import ENGINE_FIGURES
from tests.test_architecture import ROW_OF

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OPERATING = (DOCS / "operating.md").read_text(encoding="utf-8")
# Where the errors of ours that are not in proteus.errors are defined.
importlib.import_module("proteus.launcher.failure")
importlib.import_module("proteus.families.checkpoint")
importlib.import_module("proteus.gateway.errors")


def kinds(error: type[ProteusError]) -> Iterator[type[ProteusError]]:
    yield error
    for below in error.__subclasses__():
        yield from kinds(below)


CODES = sorted({kind.code for kind in kinds(ProteusError) if kind.__module__.startswith("proteus.")})


@pytest.mark.parametrize("code", CODES)
def test_operating_tells_what_to_do_about_every_error(code: str) -> None:
    assert f"`{code}`" in OPERATING or f"`{code}:" in OPERATING


@pytest.mark.parametrize(
    "code", sorted({kind.code for kind in kinds(ProteusError) if kind.__module__ == "proteus.errors"})
)
def test_contract_of_chat_names_every_error_that_a_client_may_meet(code: str) -> None:
    assert any(f"`{code}`" in line for line in CHAT.errors)


CHAT_FIGURES = (
    *FIGURES,
    *ENGINE_FIGURES,
    *PROCESSOR_CACHE_FIGURES,
    *ENCODER_CACHE_FIGURES,
    *ENCODER_POOL_FIGURES,
    *MEMORY_FIGURES,
)


@pytest.mark.parametrize(
    "figure", [*CHAT_FIGURES, *DOOR_FIGURES, *DRAW_FIGURES, *HISTOGRAMS], ids=lambda figure: figure.name
)
def test_operating_tells_every_metric_and_its_label(figure: object) -> None:
    name, label = getattr(figure, "name", ""), getattr(figure, "label", "")
    (row,) = (line for line in OPERATING.splitlines() if line.startswith(f"| `{name}` |"))
    assert not label or f"`{label}`" in row


def test_operating_tells_every_metric_of_the_gateway() -> None:
    """As a gateway that nobody asked yet tells them."""
    registry = Gateway(Deployment.load(ROOT / "deployments" / "demo.toml")).metrics.registry
    for family in registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        (row,) = (line for line in OPERATING.splitlines() if line.startswith(f"| `{name}` | {family.type} |"))
        assert all(f"`{label}`" in row for sample in family.samples for label in sample.labels if label != "le")


@pytest.mark.parametrize("resource", NAMES)
def test_operating_tells_every_resource(resource: str) -> None:
    assert f"`{resource}`" in OPERATING


@pytest.mark.parametrize("room", sorted(ROW_OF))
def test_architecture_tells_every_room(room: str) -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    assert re.search(rf"^\|.*`{room}(/|\.py)`.*\|", text, re.MULTILINE)


@pytest.mark.parametrize("family", KNOWN, ids=lambda family: family.name)
def test_families_tells_every_family(family: object) -> None:
    assert f"| {getattr(family, 'name', '')} |" in (DOCS / "families.md").read_text(encoding="utf-8")


def test_the_table_of_families_is_that_of_the_code_and_of_the_last_long_run() -> None:
    assert table() in (DOCS / "families.md").read_text(encoding="utf-8"), "make docs-plots writes it anew"


def test_the_request_document_of_the_contract_is_one_that_the_door_takes() -> None:
    example, stop = re.findall(r"```json\n(.*?)```", REQUEST_DOCUMENT, re.DOTALL)
    limits = Deployment.load(ROOT / "deployments" / "demo.toml").text
    request = ChatRequest.parse(example.encode(), limits)
    assert set(json.loads(example)) == set(ChatRequest.model_fields)
    assert len(request.messages[1].parts()) == 4
    assert StopRequest.is_one(stop.encode())
    assert set(json.loads(stop)["stop"]) == set(StopTarget.model_fields)
    assert StopRequest.parse(stop.encode(), document_limit(limits)).stop.request_id == request.request_id


def test_the_document_that_draws_is_one_that_the_door_takes() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", DRAW_REQUEST_DOCUMENT, re.DOTALL)
    limits = Deployment.load(ROOT / "deployments" / "demo.toml").draw
    assert limits is not None
    request = DrawRequest.parse(example.encode(), limits)
    assert set(json.loads(example)) == set(DrawRequest.model_fields)
    assert Wish.of(request, limits).size == "64x64"
    stop = re.search(r'`(\{"stop": .*?\}\})`', DRAW_REQUEST_DOCUMENT)
    assert stop is not None
    target = StopRequest.parse(stop[1].encode(), draw_document_limit(limits)).stop
    assert set(json.loads(stop[1])["stop"]) == set(StopTarget.model_fields)
    assert target.request_id == request.request_id


@pytest.mark.parametrize("file", sorted([ROOT / "README.md", *DOCS.rglob("*.md")]), ids=lambda file: file.stem)
def test_every_row_of_a_table_has_the_cells_of_its_head(file: Path) -> None:
    width = 0
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not width or not cells or cells == width, f"{file.name}:{number}: {line}"
        width = cells


@pytest.mark.parametrize("file", sorted((DOCS / "decisions").glob("*.md")), ids=lambda file: file.stem)
def test_decisions_stay_short(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    assert text.startswith(f"# {file.name[:4]} ")


def test_decisions_have_a_number_each() -> None:
    numbers = [int(file.name[:4]) for file in sorted((DOCS / "decisions").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))
