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
GATEWAY = {"enabled": True, "tenantsSecret": "tenants"}
INGRESS = {"enabled": True, "className": "nginx", "host": "ai.example.com", "tlsSecret": "ai-tls"}
ROUTE = {"enabled": True, "gateway": "public", "namespace": "edge", "host": "ai.example.com"}
PROXIES = ["10.244.0.0/16"]
LIGHT = """
[gateway.light]
deployment = "light/deployment.toml"
servers = [{ grpc = "127.0.0.1:8101", health = "127.0.0.1:8103" }]
"""
BY_URL = {"hosts = []  ": 'hosts = ["cdn.example.com"]  ', "networks = []": 'networks = ["10.9.0.0/16"]'}
CHECKED = """
[gateway.moderation]
url = "https://moderation.example.com/check"
hosts = ["moderation.example.com"]
before = true
after = true
timeout_ms = 2000
on_failure = "refuse"
max_at_once = 16
"""
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
        exported_file(**BY_URL),
    ),
    "with a gateway": ({"gateway": GATEWAY}, DEPLOYMENT),
    "with a gateway behind an Ingress": (
        {
            "gateway": {
                **GATEWAY,
                "ingress": INGRESS,
                "proxies": PROXIES,
                "meteringClaim": "metering",
                "moderation": {"cidr": "10.4.0.0/24", "port": 443},
            }
        },
        exported_file(**BY_URL) + CHECKED,
    ),
    "one small server with a gateway, autoscaled": (
        {
            "gateway": {
                **GATEWAY,
                "autoscaling": {"enabled": True},
                "route": ROUTE,
                "hosts": ["ai.example.com", "ai.internal"],
            },
            "pools": {**ALONE, "all": {"enabled": True}},
            "monitoring": OPERATOR,
        },
        exported_file(**{"proxies = []": 'proxies = ["10.0.0.0/8"]'}),
    ),
    "a gateway to two releases": (
        {"gateway": {**GATEWAY, "light": {"release": "small", "pool": "all"}}},
        DEPLOYMENT + LIGHT,
    ),
    "a gateway to drawing alone": ({"gateway": GATEWAY, "pools": {**ALONE, "draw": {"enabled": True}}}, DEPLOYMENT),
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
