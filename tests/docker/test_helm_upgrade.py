"""What an upgrade of the Helm chart leaves as it is: secrets of the cluster, and pods whose file is the same."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docker.fake_cluster import cluster
from tests.docker.helm_cases import CASES
from tests.docker.helm_chart import CHART, DEPLOYMENT, NAME, NAMESPACE, RELEASE, helm, of_kind, pods, render

MADE, GATEWAY = f"{NAME}-cache", f"{NAME}-gateway"
VALUES = "model.claim=models,encoderCache.mode=internal"
KEPT = {"password": "made at the install", "cache-secret": "and this"}


def secret_in_a_cluster(tmp_path: Path, there: dict[str, dict[str, str]]) -> dict[str, str]:
    """The Secret that Helm would install where these are left by the release."""
    file, kubeconfig = tmp_path / "deployment.toml", tmp_path / "kubeconfig"
    file.write_text(DEPLOYMENT, encoding="utf-8")
    with cluster(RELEASE, NAMESPACE, there) as text:
        kubeconfig.write_text(text, encoding="utf-8")
        asked = ["--dry-run=server", "--disable-openapi-validation", "--kubeconfig", str(kubeconfig)]
        given = ["--set", VALUES, "--set-file", f"deployment={file}", "-n", NAMESPACE]
        rendered = helm("template", RELEASE, str(CHART), *given, *asked, "-s", "templates/cache.yaml")
    secret = of_kind(list(filter(None, yaml.safe_load_all(rendered))), "Secret")[MADE]
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}


@pytest.mark.parametrize(
    ("there", "kept"),
    [
        ({MADE: KEPT}, KEPT),
        ({MADE: {"password": KEPT["password"]}}, {"password": KEPT["password"]}),
        ({}, {}),
    ],
    ids=["both", "one key", "none"],
)
def test_a_secret_that_is_there_is_kept(tmp_path: Path, there: dict[str, dict[str, str]], kept: dict[str, str]) -> None:
    """A new password locks every server out of the Redis that runs; a new cache secret leaves all entries unread."""
    made = secret_in_a_cluster(tmp_path, there)
    assert made.keys() == KEPT.keys()
    assert kept.items() <= made.items()
    assert all(len(made[key]) >= 48 for key in made.keys() - kept.keys())


def checksums(values: dict[str, Any], deployment: str = DEPLOYMENT) -> dict[str, str]:
    return {
        name.removeprefix(f"{NAME}-"): pod["metadata"]["annotations"]["checksum/config"]
        for name, pod in pods(render(values, deployment)).items()
    }


@pytest.mark.parametrize(
    ("values", "deployment", "rolled"),
    [
        ({}, DEPLOYMENT, set()),
        ({}, DEPLOYMENT.replace("max_queue = 256", "max_queue = 255"), {"encoder", "language", "draw"}),
        ({"encoderPool": {"timeoutMs": 1000}}, DEPLOYMENT, {"language"}),
        ({"encoderCache": {"mode": "internal", "timeoutMs": 51}}, DEPLOYMENT, {"language"}),
    ],
    ids=["nothing", "the file", "the encoder pool", "the cache"],
)
def test_pods_are_rolled_when_their_file_changes_and_no_others(
    values: dict[str, Any], deployment: str, rolled: set[str]
) -> None:
    before, after = checksums({}), checksums(values, deployment)
    assert {pool for pool in before if before[pool] != after[pool]} == rolled


@pytest.mark.parametrize("case", CASES)
def test_a_name_has_the_addresses_of_pods_that_are_ready_and_no_others(case: str) -> None:
    for name, service in of_kind(render(*CASES[case]), "Service").items():
        assert (service["spec"].get("clusterIP") == "None") == (name not in (MADE, GATEWAY))
        assert not service["spec"].get("publishNotReadyAddresses")


@pytest.mark.parametrize("case", CASES)
def test_shared_memory_is_memory_and_where_triton_looks_for_it(case: str) -> None:
    for name, pod in pods(render(*CASES[case])).items():
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        mounts = {mount["mountPath"]: mount["name"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
        if name not in (MADE, GATEWAY):
            assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
            assert "medium" not in volumes[mounts["/tmp"]]["emptyDir"]
