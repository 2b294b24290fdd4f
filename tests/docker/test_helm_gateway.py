"""The gateway of the Helm chart: its file, its probes, how it is reached and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from proteus.cli.commands import app
from proteus.deployment import Deployment
from proteus.gateway.http.browser import PROBED
from proteus.launcher.process import STOP_GRACE_S
from tests.docker.helm_cases import ALONE, CASES, GATEWAY, INGRESS, LIGHT, PROXIES
from tests.docker.helm_chart import (
    DEPLOYMENT,
    NAME,
    NAMESPACE,
    Object,
    container_ports,
    exported_file,
    file_of,
    of_kind,
    pods,
    render,
    selects,
    serving,
)

WITH_ONE = {name: case for name, case in CASES.items() if "gateway" in name}


@pytest.fixture(params=WITH_ONE.values(), ids=WITH_ONE.keys())
def found(request: pytest.FixtureRequest) -> list[Object]:
    return render(*request.param)


def container(found: list[Object]) -> Object:
    (one,) = pods(found)[f"{NAME}-gateway"]["spec"]["containers"]
    return dict(one)


def loaded(text: str, folder: Path) -> Deployment:
    file = folder / "deployment.toml"
    file.write_text(text, encoding="utf-8")
    return Deployment.load(file)


@pytest.mark.parametrize("case", WITH_ONE)
def test_its_file_is_the_given_one_but_for_where_things_are(case: str, tmp_path: Path) -> None:
    ours, given = loaded(file_of(render(*CASES[case]), "gateway"), tmp_path), loaded(CASES[case][1], tmp_path)
    assert ours.gateway is not None and given.gateway is not None
    changed = {"gateway", "checkpoint", "draw_checkpoint"}
    assert ours.model_dump(exclude=changed) == given.model_dump(exclude=changed)
    places = {"pools", "tenants", "metering", "light", "http"}
    assert ours.gateway.model_dump(exclude=places) == given.gateway.model_dump(exclude=places)
    reached = {"hosts", "proxies"}
    assert ours.gateway.http.model_dump(exclude=reached) == given.gateway.http.model_dump(exclude=reached)


LOOPBACK = ["localhost", "127.0.0.1", "[::1]"]


@pytest.mark.parametrize(
    ("case", "hosts", "proxies"),
    [
        ("with a gateway", [], []),
        ("with a gateway behind an Ingress", ["ai.example.com"], PROXIES),
        ("one small server with a gateway, autoscaled", ["ai.example.com", "ai.internal"], ["10.0.0.0/8"]),
    ],
)
def test_it_knows_the_names_that_clients_use_and_who_is_in_front_of_it(
    case: str, hosts: list[str], proxies: list[str], tmp_path: Path
) -> None:
    settings = loaded(file_of(render(*CASES[case]), "gateway"), tmp_path).gateway
    assert settings is not None
    assert (settings.http.hosts, settings.http.proxies) == ([*LOOPBACK, *hosts], proxies)


@pytest.mark.parametrize(("release", "name"), [("small", "small-proteus"), ("proteus-small", "proteus-small")])
def test_the_light_model_is_another_releases(release: str, name: str, tmp_path: Path) -> None:
    values = {"gateway": {**GATEWAY, "light": {"release": release, "pool": "all"}}}
    found = render(values, DEPLOYMENT + LIGHT)
    settings = loaded(file_of(found, "gateway"), tmp_path).gateway
    assert settings is not None and settings.light is not None
    (server,) = settings.light.servers
    other = render({"pools": {**ALONE, "all": {"enabled": True}}}, release=release)
    assert server.grpc == f"{name}-all.{NAMESPACE}.svc.cluster.local:8001"
    assert f"{name}-all" in of_kind(other, "Service")
    ours = pods(found)[f"{NAME}-gateway"]["metadata"]["labels"]
    theirs = pods(other)[f"{name}-all"]["metadata"]["labels"]
    asked = of_kind(found, "NetworkPolicy")[f"{NAME}-gateway"]["spec"]["egress"]
    assert any(selects(peer["podSelector"], theirs) for rule in asked for peer in rule["to"])
    let_in = of_kind(other, "NetworkPolicy")[f"{name}-all"]["spec"]["ingress"][0]["from"]
    assert any(selects(peer["podSelector"], ours) for peer in let_in)


def test_each_pool_is_a_service_that_answers_it(found: list[Object], tmp_path: Path) -> None:
    deployment = loaded(file_of(found, "gateway"), tmp_path)
    assert deployment.gateway is not None
    services = of_kind(found, "Service")
    for _, (server,) in deployment.gateway.pools.named():
        for address in (server.grpc, server.health or ""):
            host, _, port = address.partition(":")
            name, namespace, _ = host.split(".", 2)
            assert (namespace, services[name]["spec"]["clusterIP"]) == (NAMESPACE, "None"), "one address for each pod"
            assert int(port) in {entry["port"] for entry in services[name]["spec"]["ports"]}
    pools = serving(found).keys()
    assert (deployment.checkpoint is not None) == bool(pools & {"all", "language"})
    assert (deployment.draw_checkpoint is not None) == bool(pools & {"all", "draw"})


def test_it_is_started_with_options_that_exist(found: list[Object]) -> None:
    command = typer.main.get_command(app).commands["gateway"]  # type: ignore[attr-defined]
    options = {option for parameter in command.params for option in parameter.opts}
    verb, *given = container(found)["args"]
    values = dict(argument.split("=", 1) for argument in given)
    assert (verb, values.keys() <= options) == ("gateway", True)
    ports = container_ports(pods(found)[f"{NAME}-gateway"])
    assert ports == {"gateway": int(values["--port"]), "metrics": int(values["--metrics-port"])}


def test_probes_ask_the_public_port_for_what_it_tells_anybody(found: list[Object]) -> None:
    asked = {probe: container(found)[probe]["httpGet"] for probe in ("readinessProbe", "livenessProbe")}
    assert asked == {
        "readinessProbe": {"path": "/health/ready", "port": "gateway"},
        "livenessProbe": {"path": "/health/live", "port": "gateway"},
    }
    assert {one["path"] for one in asked.values()} == set(PROBED), "by the pod's address, which is none of its hosts"


def test_it_may_take_as_long_to_get_ready_as_a_server(found: list[Object]) -> None:
    deployments = of_kind(found, "Deployment")
    waits_s = {name: deployments[f"{NAME}-{name}"]["spec"]["progressDeadlineSeconds"] for name in serving(found)}
    assert deployments[f"{NAME}-gateway"]["spec"]["progressDeadlineSeconds"] == max(waits_s.values())


def test_what_is_open_has_time_to_end(found: list[Object], tmp_path: Path) -> None:
    deployment = loaded(file_of(found, "gateway"), tmp_path)
    assert deployment.gateway is not None
    leaves_s = int(container(found)["lifecycle"]["preStop"]["exec"]["command"][1])
    grace_s = pods(found)[f"{NAME}-gateway"]["spec"]["terminationGracePeriodSeconds"]
    assert leaves_s + deployment.gateway.routing.drain_ms / 1e3 + 2 * STOP_GRACE_S <= grace_s


def test_tenants_and_metering_are_mounted_where_its_file_says(found: list[Object], tmp_path: Path) -> None:
    settings = loaded(file_of(found, "gateway"), tmp_path).gateway
    assert settings is not None and settings.metering is not None and settings.tenants is not None
    mounts = {mount["name"]: mount for mount in container(found)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pods(found)[f"{NAME}-gateway"]["spec"]["volumes"]}
    assert str(Path(settings.tenants).parent) == mounts["tenants"]["mountPath"]
    assert volumes["tenants"]["secret"] == {"secretName": "tenants"}
    assert mounts["tenants"]["readOnly"] is True and "subPath" not in mounts["tenants"], "else no change is seen"
    assert str(Path(settings.metering.path).parent) == mounts["metering"]["mountPath"]
    assert mounts["metering"]["subPathExpr"] == "$(POD_NAME)", "two pods write no file together"


def test_there_are_two_at_least_and_each_has_a_cpu(found: list[Object]) -> None:
    scalers = of_kind(found, "HorizontalPodAutoscaler")
    replicas = of_kind(found, "Deployment")[f"{NAME}-gateway"]["spec"].get("replicas")
    assert replicas == (None if scalers else 2)
    assert all(scaler["spec"]["minReplicas"] == 2 for scaler in scalers.values())
    assert container(found)["resources"]["requests"]["cpu"] == "1"


def test_nobody_has_one_who_did_not_ask_for_it() -> None:
    assert not [found for found in render({}) if "gateway" in found["metadata"]["name"]]


def test_an_ingress_leads_to_the_service() -> None:
    way = {"ingress": {**INGRESS, "annotations": {"a.example/b": "c"}}, "proxies": PROXIES}
    (ingress,) = of_kind(render({"gateway": {**GATEWAY, **way}}), "Ingress").values()
    assert ingress["metadata"]["annotations"] == {"a.example/b": "c"}
    (rule,) = ingress["spec"]["rules"]
    assert rule["http"]["paths"][0]["backend"]["service"] == {"name": f"{NAME}-gateway", "port": {"name": "http"}}


@pytest.mark.parametrize(
    ("changed", "rolled"),
    [({}, False), ({"drain_ms = 30_000": "drain_ms = 31_000"}, True)],
    ids=["nothing", "the file"],
)
def test_its_pods_are_rolled_when_its_file_changes(changed: dict[str, str], rolled: bool) -> None:
    before, after = (
        pods(render({"gateway": GATEWAY}, text))[f"{NAME}-gateway"]["metadata"]["annotations"]["checksum/config"]
        for text in (DEPLOYMENT, exported_file(**changed))
    )
    assert (before != after) is rolled
