"""Values that the Helm chart refuses, by its schema or by its templates, with a text that says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.docker.helm_cases import ALONE, CHECKED, EXTERNAL, GATEWAY, INGRESS, LIGHT, PROXIES, ROUTE
from tests.docker.helm_chart import CHART, DEPLOYMENT, Refused, exported_file, helm, render, without_drawing

VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"service": {"type": "LoadBalancer"}}, "'service' not allowed"),
        ({"ingress": {"enabled": True}}, "'ingress' not allowed"),
        ({"pools": {"language": {"service": {"type": "NodePort"}}}}, "'service' not allowed"),
        ({"pools": {"language": {"hostNetwork": True}}}, "'hostNetwork' not allowed"),
        ({"pools": {"video": {"enabled": True}}}, "'video' not allowed"),
        ({"networkPolicy": {"enabled": False}}, "'enabled' not allowed"),
        ({"networkPolicy": {"gateway": None}}, "'gateway'"),
        ({"networkPolicy": {"gateway": dict.fromkeys(VALUES["networkPolicy"]["gateway"])}}, "/networkPolicy/gateway"),
        ({"networkPolicy": {"monitoring": None}}, "'monitoring'"),
        ({"networkPolicy": None}, "'networkPolicy'"),
        ({"defaults": {"spread": None}}, "'spread'"),
        ({"networkPolicy": {"monitoring": "everybody"}}, "/networkPolicy/monitoring"),
        ({"pools": {"language": {"replicas": -1}}}, "/pools/language/replicas"),
        ({"pools": {"language": {"replicas": "2"}}}, "/pools/language/replicas"),
        ({"pools": {"language": {"gpu": {"count": 0}}}}, "/pools/language/gpu/count"),
        ({"pools": {"language": {"gpu": {"resource": "cpu"}}}}, "/pools/language/gpu/resource"),
        ({"pools": {"language": {"shmSize": "lots"}}}, "/pools/language/shmSize"),
        ({"pools": {"language": {"spread": "maybe"}}}, "/pools/language/spread"),
        ({"pools": {"language": {"autoscaling": {"admitted": 1.5}}}}, "/pools/language/autoscaling/admitted"),
        ({"pools": {"language": {"autoscaling": {"waiting": 0}}}}, "/pools/language/autoscaling/waiting"),
        ({"pools": {"language": {"podDisruptionBudget": {"maxUnavailable": 0}}}}, "/podDisruptionBudget/"),
        ({"image": {"tag": "latest"}}, "/image/tag"),
        ({"image": {"digest": "sha256:12"}}, "/image/digest"),
        ({"model": {"image": "registry.example.com/models"}}, "/model/image"),
        ({"model": {"image": "registry.example.com/models:latest"}}, "/model/image"),
        ({"model": {"subPath": "../other"}}, "/model/subPath"),
        ({"tracing": {"url": "http://user:hunter2@collector/v1/traces"}}, "/tracing/url"),
        ({"hardware": "tpu"}, "/hardware"),
        ({"encoderCache": {"password": "hunter2"}}, "'password' not allowed"),
        ({"gateway": {"tenants": {"demo": {"keys": ["pk-1"]}}}}, "'tenants' not allowed"),
        ({"gateway": {"ingress": {"host": "https://a"}}}, "/gateway/ingress/host"),
        ({"gateway": {"hosts": ["https://a"]}}, "/gateway/hosts/0"),
        ({"gateway": {"proxies": ["10.0.0.1"]}}, "/gateway/proxies/0"),
        ({"gateway": {"light": {"pool": "encoder"}}}, "/gateway/light/pool"),
        ({"gateway": {"service": {"type": "LoadBalancer"}}}, "'service' not allowed"),
        ({"gateway": {"resources": {"limits": {"memory": "lots"}}}}, "/gateway/resources/limits/memory"),
        ({"networkPolicy": {"entrance": None}}, "'entrance'"),
        ({"encoderCache": {"external": {"url": "redis://user:hunter2@cache:6379/0"}}}, "/encoderCache/external/url"),
        ({"encoderCache": {"internal": {"image": "redis"}}}, "/encoderCache/internal/image"),
    ],
)
def test_the_schema_refuses(values: Mapping[str, Any], where: str) -> None:
    with pytest.raises(Refused, match="schema") as refused:
        render(values)
    assert where in str(refused.value)


WITHOUT_GATEWAY = re.sub(r"(?ms)^\[gateway\]$.*?(?=^# Pictures out)", "", DEPLOYMENT)
WITH_WAY = {**GATEWAY, "proxies": PROXIES}
GPU_TWICE = exported_file(**{"tensor_parallel = 1": "tensor_parallel = 2"})


@pytest.mark.parametrize(
    ("values", "deployment", "text"),
    [
        ({}, "", "--set-file deployment="),
        ({}, "a = [", "deployment is not TOML"),
        ({"model": {"claim": ""}}, DEPLOYMENT, "model: give one of"),
        ({"model": {"claim": "a", "hostPath": "/srv"}}, DEPLOYMENT, "model: give one of"),
        ({}, DEPLOYMENT + '[encoder_pool]\nurl = "a:1"\n', "deployment has [encoder_pool]"),
        ({}, DEPLOYMENT + '[encoder_cache.redis]\nurl = "redis://a"\n', "deployment has [encoder_cache.redis]"),
        ({}, exported_file(**{'"model_repository"': '"../elsewhere"'}), "repository = "),
        ({}, exported_file(**{'checkpoint = "checkpoint"': 'checkpoint = "/etc"'}), "checkpoint leads out"),
        ({}, exported_file(**{'= "draw_checkpoint"': '= "a/../../b"'}), "draw_checkpoint leads out"),
        ({}, DEPLOYMENT.split("# GPU hosts:")[0], "no table [gpu]"),
        ({"pools": ALONE}, DEPLOYMENT, "no pool is on"),
        ({"pools": {"all": {"enabled": True}}}, DEPLOYMENT, "pools.all does everything"),
        ({"pools": {"language": {"enabled": False}}}, DEPLOYMENT, "pools.encoder works for pools.language"),
        ({}, without_drawing(), "set pools.draw.enabled=false"),
        ({}, GPU_TWICE, "pools.language.gpu.count=1"),
        ({}, exported_file(**{"devices = [0]": "devices = [0, 1]"}), "pools.draw.gpu.count=1"),
        ({"defaults": {"autoscaling": {"min": 9}}}, DEPLOYMENT, "autoscaling.min is over max"),
        ({"defaults": {"rollingUpdate": {"maxSurge": 0}}}, DEPLOYMENT, "maxSurge or maxUnavailable"),
        ({"pools": {"draw": {"awayFrom": ["draw"]}}}, DEPLOYMENT, "use spread"),
        ({"encoderCache": {**EXTERNAL, "existingSecret": ""}}, DEPLOYMENT, "existingSecret is empty"),
        ({"encoderCache": {**EXTERNAL, "tls": {"enabled": False}}}, DEPLOYMENT, "tls.enabled goes with"),
        ({"encoderCache": {"mode": "external", "existingSecret": "a"}}, DEPLOYMENT, "external.url is empty"),
        ({"encoderCache": {"mode": "internal", "tls": {"enabled": True}}}, DEPLOYMENT, "tls.existingSecret is empty"),
        ({"gateway": GATEWAY}, WITHOUT_GATEWAY, "no table [gateway]"),
        ({"gateway": {"enabled": True}}, DEPLOYMENT, "tenantsSecret is empty"),
        ({"gateway": GATEWAY}, DEPLOYMENT + CHECKED, "moderation.cidr is empty"),
        ({"gateway": GATEWAY}, DEPLOYMENT + LIGHT, "gateway.light.release is empty"),
        (
            {"gateway": {**GATEWAY, "light": {"release": "small"}}},
            DEPLOYMENT + LIGHT.replace("light/", "../light/"),
            "[gateway.light] deployment leads out",
        ),
        ({"gateway": {**GATEWAY, "autoscaling": {"min": 9}}}, DEPLOYMENT, "gateway.autoscaling.min is over max"),
        ({"gateway": {**GATEWAY, "ingress": INGRESS}}, DEPLOYMENT, "gateway.proxies is empty"),
        ({"gateway": {**GATEWAY, "route": ROUTE}}, DEPLOYMENT, "gateway.proxies is empty"),
        ({"gateway": {**WITH_WAY, "ingress": {**INGRESS, "host": ""}}}, DEPLOYMENT, "gateway.ingress.host is empty"),
        ({"gateway": {**WITH_WAY, "ingress": {**INGRESS, "tlsSecret": ""}}}, DEPLOYMENT, "className and tlsSecret"),
        ({"gateway": {**WITH_WAY, "route": {**ROUTE, "gateway": ""}}}, DEPLOYMENT, "gateway.route.gateway is empty"),
    ],
)
def test_the_templates_refuse(values: Mapping[str, Any], deployment: str, text: str) -> None:
    with pytest.raises(Refused) as refused:
        render(values, deployment)
    assert text in str(refused.value)


def test_two_gpus_for_a_model_that_takes_two_are_fine() -> None:
    assert render({"pools": {"language": {"gpu": {"count": 2}}}}, GPU_TWICE)


def objects_of(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every part of the schema that describes keys, by where they are."""
    schema = schema.get("allOf", [schema])[0]
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    if "properties" in schema:
        yield path, schema
        for key, inner in schema["properties"].items():
            yield from objects_of(inner, f"{path}.{key}".removeprefix("."))


def test_the_schema_knows_every_key_and_no_other() -> None:
    for path, schema in objects_of(SCHEMA):
        assert schema["additionalProperties"] is False, path
        given = VALUES
        for key in path.split(".") if path else ():
            given = given.get(key, {})
        if not path.startswith("pools."):  # a pool says only what is not the default
            assert given.keys() == schema["properties"].keys() or path.endswith(("requests", "limits")), path


def test_values_hold_no_secret_and_every_one_has_its_words() -> None:
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    assert not any(line.split("#")[0].strip().startswith(("password:", "secret:")) for line in text.splitlines())
    assert helm("show", "values", str(CHART)).strip() == text.strip()
