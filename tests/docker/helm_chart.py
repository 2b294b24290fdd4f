"""The Helm chart, rendered by the real helm, and what a test asks of the objects that come out."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "docker" / "helm" / "proteus"
HELM = ROOT / ".venv" / "bin" / "helm"
RELEASE, NAMESPACE = "fleet", "serving"
NAME = f"{RELEASE}-proteus"
TIMEOUT_S = 60

VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

Object = dict[str, Any]


def is_value(path: str) -> bool:
    """Whether the chart has such a value; of a pool, also what it takes from `defaults`."""
    keys = path.replace("<pool>", "language").split(".")
    if keys[0] == "pools" and len(keys) > 2:
        keys = ["defaults", *keys[2:]]
    at: Any = VALUES
    for key in keys:
        if not isinstance(at, dict) or key not in at:
            return False
        at = at[key]
    return True


PATHS = {
    '"../checkpoints/demo"': '"checkpoint"',
    '"../checkpoints/draw"': '"draw_checkpoint"',
    '"../model_repository"': '"model_repository"',
}


def exported_file(**changes: str) -> str:
    """The demo's deployment file as an export into a folder of its own has it, with texts of it changed."""
    text = (ROOT / "deployments" / "demo.toml").read_text(encoding="utf-8")
    for before, after in {**PATHS, **changes}.items():
        if before not in text:
            raise ValueError(f"the demo's deployment file has no {before}")
        text = text.replace(before, after)
    return text


def without_drawing() -> str:
    return exported_file(**{'draw_checkpoint = "draw_checkpoint"': "# draws nothing:"})


DEPLOYMENT = exported_file()


class Refused(Exception):
    """Helm did not render it; the text is what it says."""


def helm(*arguments: str) -> str:
    """What it prints; raises Refused where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        own = dict.fromkeys(("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"), folder)
        done = subprocess.run(
            [HELM, *arguments],
            env={"PATH": os.defpath, "HOME": folder, **own},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    if done.returncode:
        raise Refused(done.stderr + done.stdout)
    return done.stdout


def render(values: Mapping[str, Any], deployment: str = DEPLOYMENT, *, release: str = RELEASE) -> list[Object]:
    """The objects of the chart with these values, `model.claim` among them where they name no other source."""
    return list(_render(json.dumps({"model": {"claim": "models"}, **values}, sort_keys=True), deployment, release))


@functools.cache
def _render(values: str, deployment: str, release: str) -> tuple[Object, ...]:
    with tempfile.TemporaryDirectory() as folder:
        given, file = Path(folder, "values.json"), Path(folder, "deployment.toml")
        given.write_text(values, encoding="utf-8")
        file.write_text(deployment, encoding="utf-8")
        rendered = helm(
            "template", release, str(CHART), "-n", NAMESPACE, "-f", str(given), "--set-file", f"deployment={file}"
        )
    return tuple(found for found in yaml.load_all(rendered, Loader=yaml.CSafeLoader) if found)


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    """By name."""
    return {found["metadata"]["name"]: found for found in objects if found["kind"] == kind}


def pods(objects: list[Object]) -> dict[str, Object]:
    """Templates of the pods, by the name of their Deployment."""
    return {name: found["spec"]["template"] for name, found in of_kind(objects, "Deployment").items()}


def containers(pod: Object) -> Iterator[Object]:
    yield from pod["spec"].get("initContainers", ())
    yield from pod["spec"]["containers"]


def serving(objects: list[Object]) -> dict[str, Object]:
    """Pods of tritonserver, by pool."""
    return {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod
        for name, pod in pods(objects).items()
        if name not in (f"{NAME}-cache", f"{NAME}-gateway")
    }


def container_ports(pod: Object) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for one in containers(pod) for port in one.get("ports", ())}


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector, as Kubernetes reads it, takes these labels."""
    wanted = selector.get("matchLabels", {}).items()
    among = selector.get("matchExpressions", ())
    if any(rule["operator"] != "In" for rule in among):
        raise ValueError("only the operator In is known here")
    return wanted <= labels.items() and all(labels.get(rule["key"]) in rule["values"] for rule in among)


def pods_of(objects: list[Object], selector: Mapping[str, Any]) -> dict[str, Object]:
    return {name: pod for name, pod in pods(objects).items() if selects(selector, pod["metadata"]["labels"])}


def file_of(objects: list[Object], pool: str) -> str:
    """The deployment file of a pool, as its pod finds it."""
    return str(of_kind(objects, "ConfigMap")[NAME]["data"][f"{pool}.toml"])
