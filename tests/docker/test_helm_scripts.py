"""The scripts of the Helm chart, run for real: the folder that a pod serves, and a Redis for one user."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from proteus.cache.shared import SharedCache
from proteus.configs import stale
from proteus.deployment import Deployment, Pool
from proteus.gateway.gateway import Gateway
from proteus.limits_cache import SharedStore
from tests.docker.helm_cases import CASES
from tests.docker.helm_chart import CHART, DEPLOYMENT, ROOT, file_of, render
from tests.redis_server import binary

PREPARE = CHART / "files" / "prepare.sh"
ENVIRONMENT = {"PATH": f"{ROOT / '.venv' / 'bin'}:{os.defpath}", "PYTHONPATH": str(ROOT / "src")}
WITHIN_S = 20.0


def exported(folder: Path) -> Path:
    """The demo as an export into a folder of its own leaves it."""
    folder.mkdir()
    (folder / "deployment.toml").write_text(DEPLOYMENT, encoding="utf-8")
    (folder / "checkpoint").symlink_to(ROOT / "checkpoints" / "demo")
    (folder / "draw_checkpoint").symlink_to(ROOT / "checkpoints" / "draw")
    (folder / "model_repository").symlink_to(ROOT / "model_repository")
    return folder


def prepared(tmp_path: Path, pool: Pool | Literal["gateway"], case: str = "as it is") -> Path:
    """The deployment file of a pool in the folder that its pod serves."""
    given, served = tmp_path / "given.toml", tmp_path / "served"
    given.write_text(file_of(render(*CASES[case]), pool), encoding="utf-8")
    served.mkdir(exist_ok=True)
    model = tmp_path / "model"
    source = model if model.exists() else exported(model)
    subprocess.run(
        ["sh", str(PREPARE), str(source), str(given), str(served)],
        env=ENVIRONMENT,
        check=True,
        capture_output=True,
        timeout=60,
    )
    return served / "deployment.toml"


@pytest.mark.parametrize("case", ["with a gateway", "a gateway to drawing alone"])
def test_a_gateway_has_all_that_it_reads_in_the_prepared_folder(case: str, tmp_path: Path) -> None:
    deployment = Deployment.load(prepared(tmp_path, "gateway", case))
    assert deployment.gateway is not None
    here = deployment.gateway.model_copy(update={"tenants": None, "metering": None})  # mounted in a pod
    gateway = Gateway(deployment.model_copy(update={"gateway": here}))
    offered = set(gateway.models.names())
    assert offered == ({"demo-draw"} if "alone" in case else {"demo", "demo-draw", "auto"})


def everything_in(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts}


def test_a_pod_serves_configs_of_its_own_file_and_leaves_the_exported_folder_alone(tmp_path: Path) -> None:
    before = everything_in(ROOT / "model_repository")
    for _ in range(2):  # the second time as after a restart of the node
        file = prepared(tmp_path, "language", "a Redis of its own")
        deployment = Deployment.load(file)
        assert stale(deployment) == []
        assert deployment.encoder_pool is not None
        assert deployment.encoder_cache.redis is not None
        assert deployment.checkpoint_path == ROOT / "checkpoints" / "demo"
        configs = deployment.repository_path.glob("*/config.pbtxt")
        assert all(not config.is_symlink() for config in configs)
        assert (deployment.repository_path / "vision_encoder" / "1" / "model.onnx").is_file()
    assert everything_in(ROOT / "model_repository") == before


def failed(tmp_path: Path, deployment: str) -> str:
    """What the script says, having failed, to a folder with no model in it."""
    (tmp_path / "served").mkdir()
    (tmp_path / "given.toml").write_text(deployment, encoding="utf-8")
    done = subprocess.run(
        ["sh", str(PREPARE), str(tmp_path / "model"), str(tmp_path / "given.toml"), str(tmp_path / "served")],
        env=ENVIRONMENT,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode
    return done.stderr


def test_a_folder_that_was_not_exported_is_told(tmp_path: Path) -> None:
    assert "is it an exported folder?" in failed(tmp_path, DEPLOYMENT)


def test_a_spelling_mistake_in_the_file_is_told(tmp_path: Path) -> None:
    exported(tmp_path / "model")
    assert "unknown key 'image.max_pictuers'" in failed(tmp_path, DEPLOYMENT.replace("max_pictures", "max_pictuers"))


# Redis.

PASSWORD, USER = "a password with spaces & 'quotes'", "proteus"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a Redis that the chart's script started."""
    folder = tmp_path_factory.mktemp("redis")
    (folder / "password").write_text(PASSWORD, encoding="utf-8")
    (folder / "bin").mkdir()
    (folder / "bin" / "redis-server").symlink_to(binary())
    (folder / "run").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    script = ["sh", str(CHART / "files" / "redis.sh"), str(folder / "password"), str(folder / "run")]
    process = subprocess.Popen(
        [*script, "--maxmemory", "32mb", "--port", str(port), "--bind", "127.0.0.1"],
        env={"PATH": f"{folder / 'bin'}:{os.defpath}"},
        stdout=subprocess.DEVNULL,
    )
    try:
        _wait_for(port)
        assert PASSWORD.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert PASSWORD not in (folder / "run" / "users.acl").read_text(encoding="utf-8")
        yield port
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int) -> None:
    last_s = time.monotonic() + WITHIN_S
    while time.monotonic() < last_s:
        with socket.socket() as asked:
            if asked.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise TimeoutError("redis-server did not start")


def test_servers_write_and_find_entries(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD_OF_TEST", PASSWORD)
    limits = SharedStore.model_validate(
        {
            "url": f"redis://{USER}@127.0.0.1:{port}/0",
            "password_env": "PASSWORD_OF_TEST",
            "timeout_ms": 10_000,
            "max_age_s": 60.0,
        }
    )
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)

    async def scenario() -> None:
        shared = SharedCache(limits)
        shared.keep(b"key", rows, 0.1)
        await shared.written()
        found = await shared.find(b"key", (3, 4))
        await shared.aclose()
        assert found is not None
        assert np.array_equal(found.rows, rows)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def client(port: int, **given: str) -> redis.Redis:
    return redis.Redis(port=port, retry=Retry(NoBackoff(), 0), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "command",
    ["FLUSHALL", "KEYS *", "CONFIG GET *", "EVAL return(1) 0", "SHUTDOWN", "ACL LIST", "GET proteus:vt:2:a", "SAVE"],
)
def test_the_user_of_servers_may_do_nothing_else(port: int, command: str) -> None:
    with client(port, username=USER, password=PASSWORD) as asked, pytest.raises(NoPermissionError):
        asked.execute_command(*command.split())


def test_names_that_are_not_of_entries_are_out_of_reach(port: int) -> None:
    with client(port, username=USER, password=PASSWORD) as asked, pytest.raises(NoPermissionError):
        asked.set("another", "value")


@pytest.mark.parametrize("given", [{}, {"password": PASSWORD}, {"username": USER, "password": "another"}])
def test_whoever_has_not_the_password_is_nobody(port: int, given: dict[str, str]) -> None:
    with client(port, **given) as asked, pytest.raises(RedisConnectionError):
        asked.getrange("proteus:vt:2:a", 0, 1)
