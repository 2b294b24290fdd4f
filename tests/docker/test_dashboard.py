"""The dashboard: that of the program beside it, every series told, every panel readable, nothing over another."""

from __future__ import annotations

import json
import runpy
import sys
from itertools import combinations
from typing import Any

import pytest
import yaml

from proteus.door.observed import HISTOGRAMS
from tests.docker.known_metrics import TRITON_ON_GPU, declared, known, of_gateways, selectors, wrong_in
from tests.docker.scripts import DOCKER, ROOT

GRAFANA = DOCKER / "grafana"
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "dashboard.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
UNITS = {"s", "reqps", "cps", "short", "percentunit", "bytes", "watt"}  # of Grafana
VARIABLES = {"$__rate_interval": "1m", "$instance": ".+", "$modality": ".+"}
# Not drawn and not alerted on: what they tell is in a panel by another name.
LEFT_OUT = {
    "proteus_open_requests": "the servers' drain asks it; what is reserved and what waits is drawn",
    "proteus_draw_open_requests": "the servers' drain asks it; what is reserved and what waits is drawn",
    "proteus_gateway_draining": "a gateway that stops is away soon, and that is alerted on",
    "proteus_draw_batch_occupancy": "since the start; the panel takes the rates of its two counters",
    "proteus_padding_waste": "since the start; the panel takes the rates of its two counters",
    "proteus_draw_first_previews_total": "a mean that is of use in a test of one drawing",
    "proteus_draw_first_preview_seconds_total": "a mean that is of use in a test of one drawing",
    "proteus_draw_previews_total": "the door tells what became of them",
    "proteus_draw_unsent_rows_total": "the pictures are drawn",
    "proteus_draw_unsent_seconds_total": "the pictures are drawn",
    "proteus_draw_wasted_seconds_total": "the rows are drawn",
    "nv_energy_consumption": "the power is drawn",
}


def expressions() -> list[tuple[str, str]]:
    """(title of the panel, PromQL with the variables filled in)."""
    found = []
    for panel in PANELS:
        for target in panel["targets"]:
            text = target["expr"]
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            found.append((panel["title"], text))
    return found


@pytest.fixture(scope="module")
def program() -> dict[str, Any]:
    """Names of docker/grafana/dashboard.py."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(GRAFANA))
    try:
        return runpy.run_path(str(GRAFANA / "dashboard.py"))
    finally:
        sys.path.remove(str(GRAFANA))
        sys.dont_write_bytecode = before


def test_the_file_is_what_the_program_writes(program: dict[str, Any]) -> None:
    assert (GRAFANA / "dashboard.json").read_text() == program["text"](), "python docker/grafana/dashboard.py"


def test_the_page_has_the_table_of_its_panels(program: dict[str, Any]) -> None:
    assert program["table"]() in (ROOT / "docs" / "docker.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_a_panel_asks_for_series_that_are_told(title: str, expression: str) -> None:
    assert wrong_in(expression) == []
    assert "$" not in expression, "a variable that the dashboard has not"


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_times_that_triton_adds_up_by_request_are_divided_by_requests(title: str, expression: str) -> None:
    """Its core adds the time of an execution once for each request of the batch (infer_stats.cc, UpdateSuccess)."""
    if "_duration_us" in expression:
        assert " / sum by (model)(rate(nv_inference_request_success{" in expression


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows_in_what_unit(panel: dict[str, Any]) -> None:
    assert panel["title"] and panel["description"]
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["datasource"]["uid"] == "prometheus"
    references = [target["refId"] for target in panel["targets"]]
    assert len(set(references)) == len(references) > 0
    assert all(target["legendFormat"] for target in panel["targets"])


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_legend_names_labels_that_are_left(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        named = {part.partition("}}")[0] for part in target["legendFormat"].split("{{")[1:]}
        text = target["expr"]
        assert all(name in text or text.startswith("nv_gpu") for name in named - {"instance"})


def test_panels_have_titles_and_numbers_of_their_own_and_lie_beside_each_other() -> None:
    every = DASHBOARD["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    assert len({panel["title"] for panel in every}) == len(every)
    for first, second in combinations((panel["gridPos"] for panel in every), 2):
        apart_across = first["x"] + first["w"] <= second["x"] or second["x"] + second["w"] <= first["x"]
        apart_down = first["y"] + first["h"] <= second["y"] or second["y"] + second["h"] <= first["y"]
        assert apart_across or apart_down
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in every)


def test_every_figure_is_drawn_or_alerted_on_or_left_out_for_a_reason() -> None:
    rules = yaml.safe_load((DOCKER / "prometheus" / "rules.yaml").read_text())["groups"]
    alerted = [rule["expr"] for group in rules for rule in group["rules"]]
    used = {selector.name for text in [*alerted, *(text for _, text in expressions())] for selector in selectors(text)}
    of_ours = {name for name in of_gateways() if not name.endswith(("_bucket", "_sum", "_count", "_created"))}
    assert {*declared(), *TRITON_ON_GPU, *of_ours} - used == set(LEFT_OUT)
    assert {f"{histogram.name}_bucket" for histogram in HISTOGRAMS} <= used
    assert used <= set(known())


def test_grafana_finds_the_dashboard_and_its_source() -> None:
    (source,) = yaml.safe_load((GRAFANA / "datasource.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((GRAFANA / "dashboards.yaml").read_text())["providers"]
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    mounted = {config["source"]: config["target"] for config in compose["grafana"]["configs"]}
    assert mounted["dashboard"].startswith(provider["options"]["path"] + "/")
    assert source["uid"] == DASHBOARD["panels"][1]["datasource"]["uid"]
    assert source["url"] == "http://prometheus:9090"
    assert (source["editable"], DASHBOARD["editable"], provider["allowUiUpdates"]) == (False, False, False)


def test_variables_ask_for_labels_that_are_there() -> None:
    for variable in DASHBOARD["templating"]["list"]:
        series, _, label = variable["definition"].removeprefix("label_values(").removesuffix(")").rpartition(", ")
        assert wrong_in(series.replace("{}", "")) == []
        (selector,) = selectors(series.replace("{}", ""))
        assert label in known()[selector.name] | {"instance"}
