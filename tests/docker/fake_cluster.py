"""As much of a cluster's API as Helm asks for before it installs: kinds, and the Secrets that are there."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

KINDS: Mapping[str, Sequence[str]] = {
    "v1": ("Secret", "ConfigMap", "Service", "ServiceAccount"),
    "apps/v1": ("Deployment",),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "policy/v1": ("PodDisruptionBudget",),
}


def _api() -> Iterator[tuple[str, Any]]:
    """Path and answer."""
    groups = []
    for version, kinds in KINDS.items():
        names = {kind: kind.lower().removesuffix("y") + ("ies" if kind.endswith("y") else "s") for kind in kinds}
        listed = [{"name": names[kind], "namespaced": True, "kind": kind, "verbs": ["get"]} for kind in kinds]
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        yield path, {"kind": "APIResourceList", "groupVersion": version, "resources": listed}
        group, _, number = version.rpartition("/")
        served = {"groupVersion": version, "version": number}
        groups += [{"name": group, "versions": [served], "preferredVersion": served}] if group else []
    yield "/version", {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
    yield "/api", {"kind": "APIVersions", "versions": ["v1"]}
    yield "/apis", {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


@contextmanager
def cluster(release: str, namespace: str, secrets: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """A kubeconfig for a cluster in which a release left these Secrets, by name."""
    owner = {"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": namespace}
    answers = dict(_api())
    for name, data in secrets.items():
        answers[f"/api/v1/namespaces/{namespace}/secrets/{name}"] = {
            "kind": "Secret",
            "apiVersion": "v1",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": {"app.kubernetes.io/managed-by": "Helm"},
                "annotations": owner,
            },
            "data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()},
        }

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            document = answers.get(self.path.partition("?")[0])
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(document or missing).encode()
            self.send_response(200 if document else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield _kubeconfig(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


def _kubeconfig(port: int) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "nobody"}}],
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "nobody", "user": {}}],
        }
    )
