"""Rules and scrape: every expression parses and asks for what is told, every alert says what to do."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from proteus.cli.gateway import METRICS_PORT
from proteus.gateway.errors import STATUS_OF
from tests.docker.known_metrics import known, selectors, wrong_in
from tests.docker.scripts import DOCKER, ROOT

GROUPS: list[dict[str, Any]] = yaml.safe_load((DOCKER / "prometheus" / "rules.yaml").read_text())["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
DURATION = re.compile(r"\d+[smhd]")
EACH = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])


def labels_of(expression: str) -> set[str]:
    """Of all series in it."""
    return {label for selector in selectors(expression) for label in known()[selector.name]} | {"instance", "job"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_an_expression_asks_for_series_that_are_told(rule: dict[str, Any]) -> None:
    assert wrong_in(rule["expr"]) == []


@EACH
def test_an_alert_says_what_it_is_and_how_grave(alert: dict[str, Any]) -> None:
    assert set(alert) <= {"alert", "expr", "for", "labels", "annotations"}
    assert alert["labels"]["severity"] in ("info", "warning", "critical")
    assert set(alert["annotations"]) == {"summary", "description"}
    assert all(text and not text.endswith(" ") for text in alert["annotations"].values())
    assert DURATION.fullmatch(alert.get("for", "1m"))
    assert re.search(r" (>|==) ", alert["expr"]), "a condition, not a number"


@EACH
def test_what_a_summary_names_is_a_label_that_is_left(alert: dict[str, Any]) -> None:
    text = " ".join(alert["annotations"].values())
    named = set(re.findall(r"\$labels\.(\w+)", text))
    grouped = [set(re.split(r"\W+", labels)) for labels in re.findall(r"sum by \(([^)]*)\)", alert["expr"])]
    left = set.intersection(*grouped) if grouped else labels_of(alert["expr"])
    assert named <= left


@EACH
def test_the_page_tells_what_to_do_about_an_alert(alert: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "docker.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| `{alert['alert']}` \| .+ \| .+ \|$", page, re.MULTILINE)


def test_the_share_of_faults_is_that_of_every_answer_with_a_status_from_500_on() -> None:
    (alert,) = (alert for alert in ALERTS if alert["alert"] == "ProteusGatewayFaults")
    (outcomes,) = re.findall(r'outcome=~"([\w|]+)"', alert["expr"])
    never_sent = {"cannot_listen", "launch_failed"}  # told to who starts something
    assert set(outcomes.split("|")) == {code for code, status in STATUS_OF.items() if status >= 500} - never_sent


def test_a_pool_of_which_no_server_was_ever_found_is_down_too() -> None:
    """Such a pool has no `proteus_gateway_server_up` at all; what waits for it is told of each pool."""
    (alert,) = (alert for alert in ALERTS if alert["alert"] == "ProteusPoolDown")
    assert re.match(r"proteus_gateway_waiting_requests\s+unless on \(instance, pool\)", alert["expr"])


def test_alerts_have_names_of_their_own() -> None:
    names = [alert["alert"] for alert in ALERTS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"Proteus[A-Z]\w+", name) for name in names)


def test_the_scrape_finds_every_server_and_has_the_rules() -> None:
    settings = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    jobs = {job["job_name"]: job["dns_sd_configs"][0] for job in settings["scrape_configs"]}
    assert jobs.keys() == {"proteus", "proteus-gateway"}, "which alerts and dashboard ask for"
    aliases = {
        alias
        for service in compose["services"].values()
        if isinstance(service["networks"], dict)
        for alias in service["networks"]["serving"]["aliases"]
    }
    assert {name for found in jobs.values() for name in found["names"]} == aliases
    assert (jobs["proteus"]["port"], jobs["proteus-gateway"]["port"]) == (8002, METRICS_PORT)
    mounted = {config["target"] for config in compose["services"]["prometheus"]["configs"]}
    assert set(settings["rule_files"]) <= mounted


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("rate(proteus_requests_total[5m])", []),
        ('rate(proteus_requests_total{outcome="served",instance="a"}[5m])', []),
        ("rate(proteus_request_total[5m])", ["no series is named proteus_request_total"]),
        ('sum(proteus_reserved{model="a"})', ["proteus_reserved has no label model"]),
        ("proteus_ttft_seconds", ["no series is named proteus_ttft_seconds"]),
        ('histogram_quantile(0.9, rate(proteus_ttft_seconds_bucket{le="1"}[1m]))', []),
        ("max_over_time(rate(gone[5m])[1h:1m]) and -up > (1)", ["no series is named gone"]),
    ],
)
def test_the_check_itself_sees_names_and_labels(expression: str, wrong: list[str]) -> None:
    assert wrong_in(expression) == wrong
