"""Values of the Helm chart as people would give them, each with a deployment file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.docker.helm_chart import DEPLOYMENT, exported_file, without_drawing

ALONE = {"encoder": {"enabled": False}, "language": {"enabled": False}, "draw": {"enabled": False}}
EXTERNAL = {
    "mode": "external",
    "existingSecret": "cache",
    "external": {"url": "rediss://proteus@cache.example.com:6380/0", "cidr": "10.1.2.0/24", "port": 6380},
    "tls": {"enabled": True, "existingSecret": "cache-authority"},
}
OPERATOR = {"scrape": "operator", "rules": "operator", "labels": {"release": "prometheus"}}
BUSY = {
    "priorityClassName": "serving",
    "runtimeClassName": "nvidia",
    "nodeSelector": {"gpu": "large"},
    "spread": "required",
    "gpu": {"count": 2},
    "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
}
CASES: dict[str, tuple[Mapping[str, Any], str]] = {
    "as it is": ({}, DEPLOYMENT),
    "one small server": ({"pools": {**ALONE, "all": {"enabled": True}}}, DEPLOYMENT),
    "without drawing": ({"pools": {"draw": {"enabled": False}}}, without_drawing()),
    "drawing alone": ({"pools": {**ALONE, "draw": {"enabled": True}}}, DEPLOYMENT),
    "language encodes itself": ({"pools": {"encoder": {"enabled": False}}}, DEPLOYMENT),
    "a Redis of its own": ({"encoderCache": {"mode": "internal"}}, DEPLOYMENT),
    "the same with TLS": (
        {"encoderCache": {"mode": "internal", "existingSecret": "cache", "tls": EXTERNAL["tls"]}},
        DEPLOYMENT,
    ),
    "a Redis elsewhere": ({"encoderCache": EXTERNAL}, DEPLOYMENT),
    "autoscaled, with the operator": (
        {"defaults": {"autoscaling": {"enabled": True}}, "monitoring": OPERATOR},
        DEPLOYMENT,
    ),
    "one small server, autoscaled": (
        {"pools": {**ALONE, "all": {"enabled": True, "autoscaling": {"enabled": True}}}},
        DEPLOYMENT,
    ),
    "every kind of placement": ({"pools": {"language": {**BUSY, "awayFrom": ["encoder"]}}}, DEPLOYMENT),
    "traced": ({"tracing": {"url": "http://collector.monitoring.svc:4318/v1/traces"}}, DEPLOYMENT),
    "pictures by URL": (
        {},
        exported_file(
            **{"hosts = []  ": 'hosts = ["cdn.example.com"]  ', "networks = []": 'networks = ["10.9.0.0/16"]'}
        ),
    ),
    "without GPUs, from a folder of the nodes": (
        {"hardware": "cpu", "model": {"hostPath": "/srv/models", "subPath": "demo"}},
        DEPLOYMENT,
    ),
    "from an image, by digests": (
        {
            "model": {"image": f"registry.example.com/models/llava@sha256:{'0' * 64}", "claim": ""},
            "image": {"digest": f"sha256:{'1' * 64}", "pullSecrets": ["registry"]},
        },
        DEPLOYMENT,
    ),
}
