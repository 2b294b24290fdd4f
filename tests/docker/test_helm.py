"""The Helm chart: what it renders is valid, private, restricted, and agrees with the package."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from kubernetes_validate import utils

from proteus import __version__
from proteus.cli.commands import app
from proteus.deployment import Deployment
from proteus.launcher.health import PATHS, ROUND_S, TRITON_TIMEOUT_S
from proteus.launcher.process import STOP_GRACE_S
from tests.docker.helm_cases import CASES
from tests.docker.helm_chart import (
    CHART,
    DEPLOYMENT,
    NAME,
    NAMESPACE,
    ROOT,
    Object,
    container_ports,
    containers,
    exported_file,
    file_of,
    helm,
    of_kind,
    pods,
    pods_of,
    render,
    serving,
)

VERSIONS = ("1.28", "1.31", "1.34", "1.37")
OTHERS = {"PrometheusRule", "PodMonitor", "HTTPRoute"}  # kinds of the Prometheus operator and of the Gateway API


def test_helm_finds_nothing_to_say_against_it() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


def test_the_chart_tells_the_version_of_the_package() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"] == __version__


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_every_object(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # It reads all of a version's definitions anew for each object.
    monkeypatch.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))
    different = {
        json.dumps(found, sort_keys=True): found
        for values, deployment in CASES.values()
        for found in render(values, deployment)
        if found["kind"] not in OTHERS and not (version == "1.28" and '"image": {"' in json.dumps(found))
    }
    # One of each shape: names and numbers of pools make no other schema.
    shapes = {json.dumps(_shape(found), sort_keys=True): found for found in different.values()}
    assert len(shapes) > 30
    for found in shapes.values():
        utils.validate(found, version, strict=True)


def _shape(value: Any) -> Any:
    """Keys and types, and texts that Kubernetes compares with a list of its own."""
    if isinstance(value, dict):
        return {key: _shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shape(inner) for inner in value]
    return value if isinstance(value, str) and re.fullmatch(r"[A-Z]\w+", value) else type(value).__name__


def test_pools_are_those_that_are_on(objects: list[Object]) -> None:
    names = set(of_kind(objects, "Service"))
    assert names == set(of_kind(objects, "Deployment"))
    assert names <= {f"{NAME}-{pool}" for pool in ("all", "encoder", "language", "draw", "cache", "gateway")}


def test_nothing_is_public_but_a_gateway_by_name_and_with_tls(objects: list[Object]) -> None:
    ways = [found for found in objects if found["kind"] in ("Ingress", "Gateway", "HTTPRoute", "Route")]
    for way in ways:
        assert way["metadata"]["name"] == f"{NAME}-gateway"
        if way["kind"] == "Ingress":
            assert way["spec"]["tls"][0]["hosts"] == [rule["host"] for rule in way["spec"]["rules"]]
            assert way["spec"]["tls"][0]["secretName"]
        else:
            assert (way["kind"], len(way["spec"]["hostnames"])) == ("HTTPRoute", 1)
    for service in of_kind(objects, "Service").values():
        assert service["spec"]["type"] == "ClusterIP"
        assert not service["spec"].keys() & {"externalIPs", "loadBalancerIP", "externalName"}
        assert all("nodePort" not in port for port in service["spec"]["ports"])
    for pod in pods(objects).values():
        assert not pod["spec"].keys() & {"hostNetwork", "hostPID", "hostIPC"}
        assert all("hostPort" not in port for one in containers(pod) for port in one.get("ports", ()))


def test_services_lead_to_ports_of_their_pods(objects: list[Object]) -> None:
    for name, service in of_kind(objects, "Service").items():
        (pod,) = pods_of(objects, {"matchLabels": service["spec"]["selector"]}).values()
        assert all(port["targetPort"] in container_ports(pod) for port in service["spec"]["ports"])
        assert pod is pods(objects)[name]


def test_pods_run_as_the_level_restricted_asks(objects: list[Object]) -> None:
    for pod in pods(objects).values():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for one in containers(pod):
            context = one["securityContext"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"] is context["runAsNonRoot"] is True
            assert context["allowPrivilegeEscalation"] is context["privileged"] is False
            assert {"cpu", "memory"} <= one["resources"]["requests"].keys()
            assert "memory" in one["resources"]["limits"]


def test_images_are_pinned(objects: list[Object]) -> None:
    for pod in pods(objects).values():
        for one in containers(pod):
            assert re.search(r":[^/:@]+$|@sha256:[0-9a-f]{64}$", one["image"])
            assert not one["image"].endswith(":latest")


def test_models_and_files_are_mounted_for_reading(objects: list[Object]) -> None:
    for pod in pods(objects).values():
        names = {volume["name"] for volume in pod["spec"]["volumes"]}
        for one in containers(pod):
            mounts = {mount["name"]: mount for mount in one["volumeMounts"]}
            assert mounts.keys() <= names
            assert all(mounts[name].get("readOnly") for name in mounts.keys() & {"model", "config", "script", "secret"})


def test_a_password_is_only_ever_in_a_secret(objects: list[Object]) -> None:
    for pod in pods(objects).values():
        for one in containers(pod):
            named = {entry["name"]: entry for entry in one.get("env", ())}
            for name in named.keys() & {"PROTEUS_REDIS_PASSWORD", "PROTEUS_CACHE_SECRET"}:
                assert "secretKeyRef" in named[name]["valueFrom"]
            assert not any("password" in str(word) and "/" not in str(word) for word in one.get("command", ()))
    for settings in of_kind(objects, "ConfigMap").values():
        assert not re.search(r"password\s*=\s*[^$]|://[^@\s\"]+:[^@\s\"]+@", json.dumps(settings["data"]))


def test_a_secret_is_made_only_for_a_redis_of_the_charts_own() -> None:
    made = {name: list(of_kind(render(*case), "Secret")) for name, case in CASES.items()}
    assert {name for name, secrets in made.items() if secrets} == {"a Redis of its own"}


def test_servers_are_started_with_options_that_exist(objects: list[Object]) -> None:
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    options = {option: parameter for parameter in command.params for option in parameter.opts}
    for pool, pod in serving(objects).items():
        verb, *given = pod["spec"]["containers"][0]["args"]
        values = dict(argument.split("=", 1) for argument in given)
        assert verb == "serve"
        assert values.keys() <= options.keys()
        assert values["--pool"] == pool
        ports = container_ports(pod)
        assert {name: int(values[f"--{name}-port"]) for name in ports} == ports


def test_probes_ask_the_health_port_for_paths_that_it_knows(objects: list[Object]) -> None:
    for pod in serving(objects).values():
        server = pod["spec"]["containers"][0]
        asked = {probe: server[probe]["httpGet"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
        assert {probe["port"] for probe in asked.values()} == {"health"}
        assert {probe["path"] for probe in asked.values()} <= set(PATHS)
        assert asked["readinessProbe"]["path"] == "/ready"
        assert asked["livenessProbe"]["path"] == "/live"
        given = dict(argument.split("=", 1) for argument in server["args"][1:])
        leaves_s = int(server["lifecycle"]["preStop"]["exec"]["command"][1])
        assert leaves_s > 5, "the time between two look-ups of a name"
        grace_s = pod["spec"]["terminationGracePeriodSeconds"]
        assert leaves_s + float(given["--drain-s"]) + 2 * STOP_GRACE_S < grace_s


def test_the_launcher_gives_up_on_a_start_before_the_probe_does(objects: list[Object]) -> None:
    """Else it gave up after 15 minutes, whatever `startupSeconds` allowed: a larger model never came up."""
    for pod in serving(objects).values():
        server = pod["spec"]["containers"][0]
        given = dict(argument.split("=", 1) for argument in server["args"][1:])
        given_s = float(given["--ready-timeout-s"])
        probe = server["startupProbe"]
        assert given_s == yaml.safe_load((CHART / "values.yaml").read_text())["defaults"]["startupSeconds"]
        assert given_s + 60 <= probe["failureThreshold"] * probe["periodSeconds"]


def test_a_probe_waits_longer_than_an_answer_takes(objects: list[Object]) -> None:
    for pod in serving(objects).values():
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert pod["spec"]["containers"][0][probe]["timeoutSeconds"] > ROUND_S + TRITON_TIMEOUT_S


def test_gpus_are_asked_for_where_there_is_gpu_work(objects: list[Object]) -> None:
    for pod in serving(objects).values():
        server = pod["spec"]["containers"][0]
        gpus = {
            kind: {name: count for name, count in server["resources"][kind].items() if name.startswith("nvidia.com/")}
            for kind in ("requests", "limits")
        }
        assert gpus["requests"] == gpus["limits"]
        assert len(gpus["limits"]) == ("--hardware=gpu" in server["args"])


def test_every_pool_has_a_deployment_file_that_serves_something(objects: list[Object], tmp_path: Path) -> None:
    services = of_kind(objects, "Service")
    for pool in serving(objects):
        file = tmp_path / f"{pool}.toml"
        file.write_text(file_of(objects, pool), encoding="utf-8")
        deployment = Deployment.load(file)
        assert deployment.models_of(pool)  # type: ignore[arg-type]
        asks = pool == "language" and f"{NAME}-encoder" in services
        assert (deployment.encoder_pool is not None) == asks
        if deployment.encoder_pool is not None:
            host, port = deployment.encoder_pool.url.split(":")
            assert host == f"{NAME}-encoder.{NAMESPACE}.svc.cluster.local"
            assert int(port) in {entry["port"] for entry in services[f"{NAME}-encoder"]["spec"]["ports"]}


@pytest.mark.parametrize(
    ("case", "url"),
    [
        ("as it is", None),
        ("a Redis of its own", f"redis://proteus@{NAME}-cache.{NAMESPACE}.svc.cluster.local:6379/0"),
        ("the same with TLS", f"rediss://proteus@{NAME}-cache.{NAMESPACE}.svc.cluster.local:6379/0"),
        ("a Redis elsewhere", "rediss://proteus@cache.example.com:6380/0"),
    ],
)
def test_language_servers_share_a_store_and_draw_servers_know_of_none(
    case: str, url: str | None, tmp_path: Path
) -> None:
    objects = render(*CASES[case])
    for pool, expected in (("language", url), ("draw", None), ("encoder", None)):
        file = tmp_path / f"{pool}.toml"
        file.write_text(file_of(objects, pool), encoding="utf-8")
        redis = Deployment.load(file).encoder_cache.redis
        assert (redis.url if redis is not None else None) == expected
        named = {entry["name"] for entry in serving(objects)[pool]["spec"]["containers"][0]["env"]}
        wanted = {redis.password_env, redis.secret_env} if redis is not None else set()
        assert named & {"PROTEUS_REDIS_PASSWORD", "PROTEUS_CACHE_SECRET"} == wanted
        assert ("SSL_CERT_FILE" in named) == (expected is not None and expected.startswith("rediss"))


def test_another_deployment_file_rolls_the_pods() -> None:
    before, after = (
        {name: pod["metadata"]["annotations"]["checksum/config"] for name, pod in pods(render({}, text)).items()}
        for text in (DEPLOYMENT, exported_file(**{"max_pictures = 4": "max_pictures = 3"}))
    )
    assert before.keys() == after.keys()
    assert all(before[name] != after[name] for name in before)


def test_budgets_cover_one_pool_each(objects: list[Object]) -> None:
    budgets = of_kind(objects, "PodDisruptionBudget")
    assert budgets.keys() == pods(objects).keys() - {f"{NAME}-cache"}
    for name, budget in budgets.items():
        assert list(pods_of(objects, budget["spec"]["selector"])) == [name]


def test_placement_says_where_pods_go() -> None:
    language = serving(render(*CASES["every kind of placement"]))["language"]["spec"]
    (own, encoder) = language["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    chosen = [term["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] for term in (own, encoder)]
    assert chosen == ["language", "encoder"]
    assert language["nodeSelector"] == {"gpu": "large"}
    assert language["priorityClassName"] == "serving"
    assert language["runtimeClassName"] == "nvidia"
    assert language["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 2


def test_pods_fit_the_image_and_the_cache_is_the_one_of_compose() -> None:
    image = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    objects = render(*CASES["a Redis of its own"])
    for pod in serving(objects).values():
        assert f"USER {pod['spec']['securityContext']['runAsUser']}:" in image
        assert f"EXPOSE {' '.join(str(port) for port in container_ports(pod).values())}" in image
    (cache,) = pods(objects)[f"{NAME}-cache"]["spec"]["containers"]
    assert cache["image"] == f"docker.io/library/{compose['services']['redis']['image']}"
