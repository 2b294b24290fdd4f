"""Network policies and autoscaling of the Helm chart, read as the cluster reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from proteus.deployment import Deployment
from tests.docker.helm_cases import CASES
from tests.docker.helm_chart import (
    CHART,
    NAME,
    NAMESPACE,
    ROOT,
    Object,
    container_ports,
    of_kind,
    pods,
    pods_of,
    render,
    selects,
)
from tests.docker.known_metrics import known, wrong_in

GATEWAY = {"app.kubernetes.io/name": "proteus", "app.kubernetes.io/component": "gateway"}
MONITORING = {"kubernetes.io/metadata.name": "monitoring"}
ENTRANCE = {"kubernetes.io/metadata.name": "ingress-nginx"}
OWN = {"kubernetes.io/metadata.name": NAMESPACE}


def policies_of(objects: list[Object], labels: Mapping[str, str]) -> Iterator[Object]:
    for policy in of_kind(objects, "NetworkPolicy").values():
        if selects(policy["spec"]["podSelector"], labels):
            yield policy["spec"]


def lets(peer: Mapping[str, Any], labels: Mapping[str, str], namespace: Mapping[str, str]) -> bool:
    """Whether a peer of a rule, in our namespace, takes a pod with these labels in that namespace."""
    if "ipBlock" in peer:
        return False
    there = selects(peer["namespaceSelector"], namespace) if "namespaceSelector" in peer else namespace == OWN
    return there and selects(peer.get("podSelector", {}), labels)


def open_ports(
    objects: list[Object],
    of: Mapping[str, str],
    asked_by: Mapping[str, str],
    namespace: Mapping[str, str] = OWN,
) -> set[int]:
    """Ports of a pod that another one reaches: what any policy adds."""
    return {
        port["port"]
        for policy in policies_of(objects, of)
        for rule in policy.get("ingress", ())
        if any(lets(peer, asked_by, namespace) for peer in rule["from"])
        for port in rule["ports"]
    }


def test_every_pod_is_denied_by_default(objects: list[Object]) -> None:
    deny = of_kind(objects, "NetworkPolicy")[f"{NAME}-deny"]["spec"]
    assert pods_of(objects, deny["podSelector"]).keys() == pods(objects).keys()
    assert deny["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in deny
    assert {port["port"] for rule in deny["egress"] for port in rule["ports"]} == {53}


def test_no_rule_is_for_everybody(objects: list[Object]) -> None:
    for policy in of_kind(objects, "NetworkPolicy").values():
        for side, key in (("ingress", "from"), ("egress", "to")):
            for rule in policy["spec"].get(side, ()):
                assert rule[key]
                assert rule["ports"]
                assert all(peer not in ({}, {"podSelector": {}}) for peer in rule[key])


def test_policies_name_ports_that_their_pods_have(objects: list[Object]) -> None:
    for policy in of_kind(objects, "NetworkPolicy").values():
        for pod in pods_of(objects, policy["spec"]["podSelector"]).values():
            listened = set(container_ports(pod).values())
            opened = {port["port"] for rule in policy["spec"].get("ingress", ()) for port in rule["ports"]}
            assert opened <= listened


def test_who_reaches_what(objects: list[Object]) -> None:
    labels = {name.removeprefix(f"{NAME}-"): pod["metadata"]["labels"] for name, pod in pods(objects).items()}
    stranger = {"app": "anything"}
    has_gateway = "gateway" in labels
    for pool, own in labels.items():
        served = pool not in ("encoder", "cache", "gateway")
        assert open_ports(objects, own, GATEWAY) == ({8001, 8080} if served and not has_gateway else set())
        assert open_ports(objects, own, GATEWAY, {"kubernetes.io/metadata.name": "elsewhere"}) == set()
        assert open_ports(objects, own, stranger) == set()
        assert open_ports(objects, own, stranger, ENTRANCE) == ({8090} if pool == "gateway" else set())
        told = {"cache": set(), "gateway": {8091}}.get(pool, {8002})
        assert open_ports(objects, own, stranger, MONITORING) == told
        for other, asking in labels.items():
            expected = {("encoder", "language"): {8001}, ("cache", "language"): {6379}, ("cache", "all"): {6379}}
            expected |= {(asked, "gateway"): {8001, 8080} for asked in ("language", "draw", "all")}
            assert open_ports(objects, own, asking) == expected.get((pool, other), set())


def egress(objects: list[Object], pool: str) -> list[Object]:
    return list(of_kind(objects, "NetworkPolicy")[f"{NAME}-{pool}"]["spec"].get("egress", ()))


@pytest.mark.parametrize(
    ("case", "pool", "ports"),
    [
        ("as it is", "language", [8001]),
        ("as it is", "encoder", []),
        ("as it is", "draw", []),
        ("language encodes itself", "language", []),
        ("a Redis of its own", "language", [8001, 6379]),
        ("a Redis of its own", "draw", []),
        ("a Redis elsewhere", "language", [8001, 6380]),
        ("pictures by URL", "language", [8001, 443]),
        ("pictures by URL", "encoder", []),
        ("traced", "language", [8001, 4318]),
        ("traced", "draw", [4318]),
        ("with a gateway", "gateway", [8001, 8080]),
        ("with a gateway behind an Ingress", "gateway", [8001, 8080, 443, 443]),
        ("a gateway to drawing alone", "gateway", [8001, 8080]),
        ("a gateway to two releases", "gateway", [8001, 8080, 8001, 8080]),
    ],
)
def test_pods_ask_only_whom_they_need(case: str, pool: str, ports: list[int]) -> None:
    rules = egress(render(*CASES[case]), pool)
    assert [port["port"] for rule in rules for port in rule["ports"]] == ports


def test_fetching_reaches_no_private_address_but_those_that_the_file_names() -> None:
    blocks = [peer["ipBlock"] for peer in egress(render(*CASES["pictures by URL"]), "language")[-1]["to"]]
    assert [block["cidr"] for block in blocks] == ["0.0.0.0/0", "2000::/3", "10.9.0.0/16"]
    private = {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "127.0.0.0/8", "100.64.0.0/10"}
    assert private <= set(blocks[0]["except"])


def test_a_redis_elsewhere_is_reached_at_its_addresses_alone() -> None:
    (redis,) = (
        rule
        for rule in egress(render(*CASES["a Redis elsewhere"]), "language")
        if [port["port"] for port in rule["ports"]] == [6380]
    )
    assert redis["to"] == [{"ipBlock": {"cidr": "10.1.2.0/24"}}]


# Autoscaling.


def rules(objects: list[Object]) -> list[Object]:
    of_operator = of_kind(objects, "PrometheusRule")
    if of_operator:
        spec = of_operator[NAME]["spec"]
    else:
        spec = yaml.safe_load(of_kind(objects, "ConfigMap")[f"{NAME}-rules"]["data"]["rules.yaml"])
    return [rule for group in spec["groups"] for rule in group["rules"]]


def adapted() -> dict[str, str]:
    """Name of a metric that the adapter serves: series that it asks Prometheus for."""
    file = yaml.safe_load((CHART / "files" / "adapter-rules.yaml").read_text(encoding="utf-8"))
    return {rule["name"]["as"]: rule["seriesQuery"].split("{")[0] for rule in file["rules"]["custom"]}


def test_rules_ask_for_series_that_somebody_tells(objects: list[Object]) -> None:
    scraped = {name: labels | {"namespace", "pod"} for name, labels in known().items()}
    for rule in rules(objects):
        assert wrong_in(rule["expr"], also=scraped) == []
        assert f'namespace="{NAMESPACE}",pod=~"{NAME}-{rule["labels"]["pool"]}-.+"' in rule["expr"]


def test_the_adapter_serves_what_the_rules_record() -> None:
    recorded = {rule["record"] for rule in rules(render({}))}
    assert set(adapted().values()) == recorded
    text = (CHART / "files" / "adapter-rules.yaml").read_text(encoding="utf-8")
    for query in (rule["metricsQuery"] for rule in yaml.safe_load(text)["rules"]["custom"]):
        filled = query.replace("<<.GroupBy>>", "pod").replace("<<.LabelMatchers>>", 'pod="a"')
        for series in recorded:
            also = {series: frozenset({"pod", "namespace"})}
            assert wrong_in(filled.replace("<<.Series>>", series), also=also) == []


@pytest.mark.parametrize("case", ["autoscaled, with the operator", "one small server, autoscaled"])
def test_autoscalers_scale_pools_by_figures_that_are_recorded_for_them(case: str) -> None:
    found = render(*CASES[case])
    deployments, scalers = of_kind(found, "Deployment"), of_kind(found, "HorizontalPodAutoscaler")
    recorded = {(rule["labels"]["pool"], rule["record"]) for rule in rules(found)}
    assert scalers.keys() == deployments.keys()
    for name, scaler in scalers.items():
        spec = scaler["spec"]
        assert spec["scaleTargetRef"]["name"] == name
        assert "replicas" not in deployments[name]["spec"]
        pool = name.removeprefix(f"{NAME}-")
        asked = {(pool, adapted()[metric["pods"]["metric"]["name"]]) for metric in spec["metrics"]}
        assert asked == {one for one in recorded if one[0] == pool}
        down, up = spec["behavior"]["scaleDown"], spec["behavior"]["scaleUp"]
        assert down["stabilizationWindowSeconds"] > 10 * up["stabilizationWindowSeconds"]


def test_the_share_is_that_of_every_resource_with_a_capacity() -> None:
    demo = Deployment.load(ROOT / "deployments" / "demo.toml")
    by_pool = {rule["labels"]["pool"]: rule["expr"] for rule in rules(render({})) if "admitted" in rule["record"]}
    assert demo.draw is not None
    capacities = {"language": demo.admission.capacity, "draw": demo.draw.admission.capacity}
    assert by_pool.keys() == capacities.keys()
    for pool, capacity in capacities.items():
        limits = {name: limit for name, limit in capacity if limit is not None}
        assert by_pool[pool].count("avg_over_time") == 1 + len(limits), "and 0 of one that was asked nothing yet"
        assert all(f'resource="{name}"}}[1m]) / {limit}' in by_pool[pool] for name, limit in limits.items())


@pytest.mark.parametrize("case", ["as it is", "one small server"])
def test_a_family_that_is_not_told_yet_takes_nothing_from_a_figure(case: str) -> None:
    """A door tells its queue from its first request on: a sum by `+` would be nothing until every door was asked."""
    for rule in rules(render(*CASES[case])):
        (whole,) = re.fullmatch(r"(?:sum|max) by \(namespace, pod\) \((.+)\)", rule["expr"]).groups()  # type: ignore[union-attr]
        terms = whole.split(" or ")
        assert " + " not in rule["expr"]
        # `or` compares labels, and functions drop names: terms of two families with the same labels need one more.
        kept = [term for term in terms if not term.startswith("0 * ")]
        families = [re.search(r"(proteus|nv)_\w+", term)[0] for term in kept]  # type: ignore[index]
        if len(set(families)) > 1:
            assert [re.search(r'"of", "(\w+)"', term)[1] for term in kept] == families  # type: ignore[index]


@pytest.mark.parametrize("case", ["autoscaled, with the operator", "one small server with a gateway, autoscaled"])
def test_the_operator_scrapes_the_metrics_of_every_pool(case: str) -> None:
    found = render(*CASES[case])
    spec = of_kind(found, "PodMonitor")[NAME]["spec"]
    assert pods_of(found, spec["selector"]).keys() == pods(found).keys() - {f"{NAME}-cache"}
    (endpoint,) = spec["podMetricsEndpoints"]
    assert all(endpoint["port"] in container_ports(pod) for pod in pods(found).values())
    assert not any("prometheus.io/scrape" in pod["metadata"]["annotations"] for pod in pods(found).values())
