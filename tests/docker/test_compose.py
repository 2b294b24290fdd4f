"""The Compose file: by the schema of Compose, by a linter, and by what no service of it may do."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import typer
import yaml
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from proteus.cli.commands import app
from proteus.cli.gateway import PORT
from proteus.deployment import Deployment
from proteus.gateway.run import server_address
from proteus.gateway.tenancy.tenants_file import digest_of, keys_of, read_tenants
from proteus.launcher.health import DEFAULT_PORT
from proteus.launcher.process import STOP_GRACE_S
from proteus.launcher.serve import READY_TIMEOUT_S
from proteus.launcher.surroundings import SHM_ENOUGH_BYTES
from tests.docker.scripts import BIN, DOCKER, ROOT
from tests.redis_server import RedisServer, binary

FILE = DOCKER / "compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
SERVERS = [name for name in SERVICES if name.startswith("server-")]
GATEWAYS = [name for name in SERVICES if name.startswith("gateway-")]
PRIVATE_PORTS = {"8000", "8001", "8002", "8080", "8091"}
PINNED = re.compile(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?")
EACH = pytest.mark.parametrize("name", SERVICES)


def test_the_schema_of_compose_accepts_it() -> None:
    command = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", FILE]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_yamllint_has_nothing_to_say() -> None:
    files = [FILE, *sorted((DOCKER / "grafana").glob("*.yaml")), *sorted((DOCKER / "prometheus").glob("*.y*ml"))]
    command = [BIN / "yamllint", "--strict", "--config-file", DOCKER / ".yamllint.yaml", *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@EACH
def test_a_service_has_no_more_rights_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"].split(":")[0] not in ("0", "root"), "and it is nobody"
    assert not {"privileged", "pid", "ipc", "network_mode", "devices"} & service.keys()


@EACH
def test_a_service_is_bounded_watched_and_comes_back(name: str) -> None:
    service = SERVICES[name]
    assert service["deploy"]["resources"]["limits"]["memory"]
    assert service["healthcheck"]["test"]
    assert service["init"] is True
    assert service["restart"] == "unless-stopped"
    assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_may_start_for_as_long_as_its_launcher_waits(name: str) -> None:
    """Else `up --wait` calls one unhealthy that still loads its models."""
    wanted = f"{READY_TIMEOUT_S[name.removeprefix('server-')]:.0f}s"
    assert SERVICES[name]["healthcheck"]["start_period"] == wanted
    assert f"--start-period={wanted} " in (DOCKER / "Dockerfile").read_text()


@EACH
def test_an_image_is_built_here_or_pinned(name: str) -> None:
    service = SERVICES[name]
    if "build" in service:
        assert service["build"]["target"] in (DOCKER / "Dockerfile").read_text()
        assert service["image"] == f"proteus:{service['build']['target']}"
    else:
        assert PINNED.fullmatch(service["image"])


@EACH
def test_published_ports_are_on_loopback_and_none_is_private(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\$\{[A-Z]+_PORT:-\d+\}:\d+", port)
        assert port.rpartition(":")[2] not in PRIVATE_PORTS
    assert ("ports" in SERVICES[name]) == (name in ("prometheus", "grafana", *GATEWAYS))


def test_servers_and_redis_are_where_nothing_comes_in_or_goes_out() -> None:
    assert COMPOSE["networks"]["serving"] == {"internal": True}
    for name in (*SERVERS, "redis"):
        assert list(SERVICES[name]["networks"]) == ["serving"]
    assert "serving" not in SERVICES["grafana"]["networks"], "it asks Prometheus alone"


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_has_room_to_run(name: str) -> None:
    server = SERVICES[name]
    assert int(re.fullmatch(r"(\d)gb", server["shm_size"])[1]) << 30 >= SHM_ENOUGH_BYTES  # type: ignore[index]
    (temporary,) = (mount for mount in server["tmpfs"] if mount.startswith("/tmp:"))
    assert "exec" in temporary.partition(":")[2].split(","), "the stubs are started from there"
    assert server["depends_on"] == {"redis": {"condition": "service_healthy"}}
    assert server["healthcheck"]["test"] == ["CMD", "proteus", "health"]
    assert server["profiles"] == [name.removeprefix("server-")]


@pytest.mark.parametrize("name", GATEWAYS)
def test_a_gateway_is_started_with_options_that_exist_and_finds_the_servers(name: str) -> None:
    gateway = SERVICES[name]
    command = typer.main.get_command(app).commands["gateway"]  # type: ignore[attr-defined]
    options = {option for parameter in command.params for option in parameter.opts}
    verb, *given = gateway["command"]
    values = dict(word.split("=", 1) for word in given)
    assert (verb, values.keys() <= options) == ("gateway", True)
    address = server_address(values["--server"])
    aliases = {alias for server in SERVERS for alias in SERVICES[server]["networks"]["serving"]["aliases"]}
    assert {address.grpc.split(":")[0], (address.health or "").split(":")[0]} == aliases
    assert f":{DEFAULT_PORT}" in (address.health or "")
    assert gateway["image"] == SERVICES[name.replace("gateway", "server")]["image"]
    assert gateway["ports"] == [f"127.0.0.1:${{GATEWAY_PORT:-{PORT}}}:{PORT}"]
    server = name.replace("gateway", "server")
    assert gateway["depends_on"] == {server: {"condition": "service_started"}}, "and so it is stopped before it"


@pytest.mark.parametrize("metering", ["../var/", "var/"], ids=["the demo", "an export"])
def test_what_the_gateway_reads_and_writes_is_mounted_where_the_images_file_says(tmp_path: Path, metering: str) -> None:
    file = tmp_path / "demo.toml"
    file.write_text((ROOT / "deployments" / "demo.toml").read_text().replace("../var/", metering))
    subprocess.run(["sed", "-i", "-f", DOCKER / "gateway.sed", file], check=True)
    settings = Deployment.load(file).gateway
    assert settings is not None and settings.metering is not None
    assert settings.tenants == f"/run/secrets/{SERVICES['gateway-cpu']['secrets'][0]}"
    assert f"metering:{Path(settings.metering.path).parent}" in SERVICES["gateway-cpu"]["volumes"]
    assert (DOCKER / "Dockerfile").read_text().count("install -d -o 10001 -g 10001 /var/lib/proteus\n") == 2


def test_a_stop_leaves_time_for_what_is_open() -> None:
    settings = Deployment.load(ROOT / "deployments" / "demo.toml").gateway
    assert settings is not None
    waits_s = {name: int(SERVICES[name]["stop_grace_period"].removesuffix("s")) for name in (*SERVERS, *GATEWAYS)}
    (drain_s,) = set(re.findall(r'"--drain-s", "(\d+)"', (DOCKER / "Dockerfile").read_text()))
    assert min(waits_s.values()) >= max(int(drain_s), settings.routing.drain_ms / 1e3) + 2 * STOP_GRACE_S


def test_the_gpu_server_reserves_devices_and_mounts_its_models_read_only() -> None:
    server = SERVICES["server-gpu"]
    (device,) = server["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], "gpu" in device["capabilities"]) == ("nvidia", True)
    (models,) = server["volumes"]
    assert (models["target"], models["read_only"]) == ("/srv/proteus", True)


def test_secrets_are_files_that_a_script_makes_and_git_never_sees() -> None:
    names = set(COMPOSE["secrets"])
    made = set(re.search(r"for name in ([\w ]+);", (DOCKER / "secrets.sh").read_text())[1].split())  # type: ignore[index]
    assert names == {*made, "tenants"}
    assert {secret["file"] for secret in COMPOSE["secrets"].values()} == {f"secrets/{name}" for name in names}
    ignored = subprocess.run(["git", "check-ignore", "-q", "docker/secrets/redis_password"], cwd=ROOT)
    assert ignored.returncode == 0
    text = FILE.read_text()
    assert not re.search(r"(?i)(password|secret)\w*:\s*[\"']?(?!/run/secrets|\{file)[a-z0-9]{6,}", text)


def test_the_script_makes_each_secret_once(tmp_path: Path) -> None:
    script = tmp_path / "secrets.sh"
    script.write_bytes((DOCKER / "secrets.sh").read_bytes())
    subprocess.run(["sh", script], check=True, capture_output=True)
    first = {file.name: file.read_text() for file in (tmp_path / "secrets").iterdir()}
    assert len(set(first.values())) == len(first) == 5
    tenants = read_tenants(tmp_path / "secrets" / "tenants")
    assert [key.tenant.name for key in keys_of(tenants).values()] == ["demo"]
    assert digest_of(first["api_key"].strip().encode()) in keys_of(tenants)
    assert (tmp_path / "secrets" / "api_key").stat().st_mode & 0o077 == 0, "which no container sees"
    assert all(re.fullmatch(r"[0-9a-f]{64}", first[name]) for name in first.keys() - {"api_key", "tenants"})
    assert (tmp_path / "secrets").stat().st_mode & 0o077 == 0, "the folder keeps others of the host out"
    subprocess.run(["sh", script], check=True, capture_output=True)
    assert {file.name: file.read_text() for file in (tmp_path / "secrets").iterdir()} == first


def test_every_file_that_is_mounted_is_there() -> None:
    for config in COMPOSE["configs"].values():
        assert (DOCKER / config["file"]).is_file()
    used = {config["source"] for service in SERVICES.values() for config in service.get("configs", [])}
    assert used == set(COMPOSE["configs"])


def test_redis_keeps_nothing_on_disk_and_forgets_what_has_no_room() -> None:
    lines = (DOCKER / "redis.conf").read_text().splitlines()
    settings = dict(line.split(maxsplit=1) for line in lines if line and line[0] != "#")
    assert settings["save"] == '""'
    assert settings["appendonly"] == "no"
    assert settings["maxmemory-policy"] == "allkeys-lru"
    assert int(settings["maxmemory"].removesuffix("mb")) < 768, "below the limit of its container"
    assert "requirepass" not in settings, "which is a secret"


def test_the_address_of_redis_in_the_image_is_that_of_the_service() -> None:
    table = tomllib.loads((DOCKER / "redis.toml").read_text())["encoder_cache"]["redis"]
    assert table["url"] == f"redis://redis:{6379}/0"
    environment = SERVICES["server-cpu"]["environment"]
    assert set(environment) == {f"{table['password_env']}_FILE", f"{table['secret_env']}_FILE"}
    assert set(environment.values()) <= {f"/run/secrets/{name}" for name in SERVICES["server-cpu"]["secrets"]}


def test_grafana_lets_nobody_in_without_a_password() -> None:
    settings = SERVICES["grafana"]["environment"]
    assert settings["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    assert settings["GF_USERS_ALLOW_SIGN_UP"] == "false"
    assert settings["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/secrets/grafana_password"


@pytest.fixture
def redis_service(tmp_path: Path) -> Iterator[int]:
    """The command of the service, run with a real redis-server and the paths of a container moved aside; its port."""
    port = RedisServer().port
    (tmp_path / "redis_password").write_text("a-password\n")
    (tmp_path / "redis.conf").write_text((DOCKER / "redis.conf").read_text().replace("6379", str(port)))
    (tmp_path / "tmp").mkdir()
    shell, option, script = SERVICES["redis"]["command"]
    moved = {
        "/etc/redis.conf": f"{tmp_path}/redis.conf",
        "/tmp/": f"{tmp_path}/tmp/",
        "/run/secrets/": f"{tmp_path}/",
        "redis-server ": f"{binary()} ",
    }
    script = re.sub("|".join(map(re.escape, moved)), lambda found: moved[found[0]], script)
    command = [shell, option, script.replace("$$", "$")]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        try:
            yield port
        finally:
            process.kill()


def test_redis_wants_the_password_of_the_secret_and_evicts(redis_service: int) -> None:
    with redis.Redis(port=redis_service, password="a-password", retry=Retry(ConstantBackoff(0.05), 100)) as client:
        assert client.ping()
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "allkeys-lru"}
        assert client.config_get("save") == {"save": ""}
    with redis.Redis(port=redis_service) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
