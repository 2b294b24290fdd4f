"""The three caches of real servers: what reports and figures tell of them, and a Redis between two servers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc
from tritonclient.grpc import InferInput
from tritonclient.utils import InferenceServerException
from typer.testing import CliRunner

from proteus.cache.key import scope_key
from proteus.cli import app
from proteus.client import Answer, Client
from proteus.deployment import Deployment
from proteus.launcher import LaunchFailed, Server
from tests.preprocess.pictures import encode, noise
from tests.redis_server import RedisServer
from tests.server.figures import metrics, until
from tests.server.fleet import linked

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "deployments" / "demo.toml"
QUESTION = "what is this?"
INSTANCES = Deployment.load(DEMO).stages.image_preprocess.instances  # each keeps pixels for itself
TOLD_WITHIN_S = 2.5  # figures are told once a second
SECRET = "PROTEUS_TEST_CACHE_SECRET"


def picture(seed: int) -> bytes:
    """One that no other test shows."""
    return encode(noise(40, 30, 7_000_000 + seed))


def ask(server: Server, *pictures: bytes, **options: Any) -> Answer:
    with Client(server.ports.grpc_url) as client:
        return client.ask(QUESTION, list(pictures), **options)


def preprocess(client: tritonclient.grpc.InferenceServerClient, data: bytes, scope: str) -> dict[str, Any]:
    """image_preprocess, asked directly."""
    inputs = []
    given: dict[str, npt.NDArray[Any]] = {
        "image_bytes": np.frombuffer(data, dtype=np.uint8)[None],
        "scope_key": np.frombuffer(scope_key(scope), dtype=np.uint8)[None],
        "target_px": np.zeros((1, 2), dtype=np.int32),
    }
    for name, array in given.items():
        kind = "UINT8" if array.dtype == np.uint8 else "INT32"
        inputs.append(InferInput(name, list(array.shape), kind))
        inputs[-1].set_data_from_numpy(array)
    result = client.infer("image_preprocess", inputs)
    return {name: result.as_numpy(name)[0] for name in ("pixel_values", "preprocess_saved_us", "preprocess_ns")}


def test_a_picture_that_was_shown_before_is_a_hit_with_the_same_answer_and_without_stages(server: Server) -> None:
    shown = picture(1)
    first, again = (ask(server, shown, max_tokens=8) for _ in range(2))
    assert again.text == first.text
    assert (first.caches["encoder"]["hits"], again.caches["encoder"]["hits"]) == (0, 1)
    assert again.caches["encoder"]["saved_ms"] > 0
    assert again.caches["processor"]["lookups"] == 0, "nobody asked for its pixels"
    assert not {"preprocess", "encoder_queue", "encode", "connector"} & again.stages_ms.keys()


def test_pixels_are_kept_for_a_scope_and_known_by_their_bytes(
    grpc_client: tritonclient.grpc.InferenceServerClient,
) -> None:
    shown, other = picture(2), picture(3)
    first, *again = (preprocess(grpc_client, shown, "tenant") for _ in range(2 * INSTANCES))
    computed = [one for one in again if one["preprocess_saved_us"] == 0]
    assert first["preprocess_saved_us"] == 0
    assert len(computed) < INSTANCES  # each instance computes it once
    for one in again:
        assert np.array_equal(first["pixel_values"], one["pixel_values"])
        assert one["preprocess_ns"][0] <= one["preprocess_ns"][1]
    for scope, data in (("other", shown), ("", shown), ("tenant", other)):
        assert preprocess(grpc_client, data, scope)["preprocess_saved_us"] == 0


def test_a_picture_that_cannot_be_decoded_is_refused_again_and_again(
    grpc_client: tritonclient.grpc.InferenceServerClient,
) -> None:
    for _ in range(3):
        with pytest.raises(InferenceServerException, match="invalid_picture"):
            preprocess(grpc_client, picture(4)[:80], "tenant")


def test_the_metrics_port_and_the_command_tell_what_the_caches_did(server: Server) -> None:
    names = ("encoder_cache_lookups_total", "encoder_cache_hits_total", "processor_cache_lookups_total")

    def told() -> list[float]:
        now = metrics(server)
        return [sum(value for key, value in now.items() if key.startswith(f"proteus_{name}")) for name in names]

    ask(server, picture(5))
    assert until(server, lambda now: now.get('proteus_encoder_cache_bytes{state="held"}', 0) > 0)
    time.sleep(TOLD_WITHIN_S)  # who looked up before is told of by then
    before = told()
    ask(server, picture(6))
    ask(server, picture(6))
    assert until(server, lambda _: [after - then for after, then in zip(told(), before, strict=True)] == [2, 1, 1])
    result = CliRunner().invoke(app, ["caches", "--metrics-url", server.ports.metrics_url, "--json"])
    assert result.exit_code == 0, result.stderr
    states = {state["cache"]: state for state in json.loads(result.stdout)}
    assert list(states) == ["processor", "encoder", "prefix"]
    for state in states.values():
        assert 0 <= state["hits"] <= state["lookups"]
        assert 0 <= state["held_bytes"] <= state["max_bytes"]
    assert states["encoder"]["saved_s"] > 0


@contextmanager
def sharing(folder: Path, redis: RedisServer, **changes: str) -> Iterator[Server]:
    """A server of the demo that only reads, with a Redis behind its encoder cache."""
    table = {"url": f'"{redis.url}"', "timeout_ms": "2000", "max_age_s": "60.0", "secret_env": f'"{SECRET}"'} | changes
    lines = "".join(f"{key} = {value}\n" for key, value in table.items())
    deployment = linked(folder, encoder_cache=f"[encoder_cache.redis]\n{lines}")
    with Server(deployment, log=folder / "server.log") as server:
        yield server


def redis_figures(server: Server) -> dict[str, float]:
    """By outcome; those of which there were any."""
    found = {re.search(r'redis_total\{outcome="(\w+)"\}', name): value for name, value in metrics(server).items()}
    return {match[1]: value for match, value in found.items() if match is not None and value}


def test_two_servers_share_visual_tokens_and_go_on_when_redis_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET, "between the two")
    shown = [picture(10 + number) for number in range(4)]
    with RedisServer() as redis, sharing(tmp_path / "one", redis) as one, sharing(tmp_path / "other", redis) as other:
        first = ask(one, shown[0], shown[1], cache_scope="tenant", max_tokens=8)
        assert until(one, lambda _: redis_figures(one) == {"miss": 2, "written": 2})
        assert len(redis.entries()) == 2
        again = ask(other, shown[0], shown[1], cache_scope="tenant", max_tokens=8)
        assert (again.text, again.caches["encoder"]["hits"]) == (first.text, 2)
        assert again.caches["encoder"]["saved_ms"] > 0
        assert ask(other, shown[0], cache_scope="another").caches["encoder"]["hits"] == 0
        with redis.client() as client:
            for name in client.scan_iter():
                client.set(name, client.get(name)[:-1] + b"?")
        with Client(one.ports.grpc_url) as fresh:  # garbage now, and in no memory of this server
            assert fresh.ask(QUESTION, [shown[0]], cache_scope="another").caches["encoder"]["hits"] == 0
        assert until(one, lambda _: redis_figures(one).get("rejected") == 1)
        redis.kill()
        for server in (one, other):
            answer = ask(server, shown[2], cache_scope="tenant", max_tokens=8)
            assert answer.caches["encoder"]["hits"] == 0
            assert ask(server, shown[0], cache_scope="tenant").caches["encoder"]["hits"] == 1, "its own memory"
            assert until(server, lambda _, server=server: redis_figures(server).get("lost", 0) >= 1)
        redis.start()
        unseen = count(100)
        assert until(one, lambda _: bool(ask(one, picture(next(unseen)), max_tokens=1) and redis.entries()))


def test_a_server_without_the_secret_that_its_file_names_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SECRET, raising=False)
    without = sharing(tmp_path / "one", RedisServer())
    with pytest.raises(LaunchFailed, match=f"{SECRET}, which is not set"), without:
        pass
