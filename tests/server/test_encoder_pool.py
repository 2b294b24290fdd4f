"""Language servers whose pictures another server encodes: real ones, that are killed, replaced and confused."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from perf.collector import Collector, collecting
from proteus.client import Answer, Client, ClientError
from proteus.deployment import Deployment
from proteus.launcher import RestartPolicy, Server, Tracing
from tests.preprocess.pictures import encode, noise
from tests.redis_server import RedisServer
from tests.server.figures import metrics, until
from tests.server.fleet import free_ports, linked
from tests.server.test_stage_times import ENCODING, timed
from tests.server.wire import document, error_of

QUESTION = "what is this?"
BACK_WITHIN_S = 60
OTHER = "0123456789abcdef"  # revision
MANY_RESTARTS = RestartPolicy(max_restarts=100)
PORTS = free_ports()
Ask = Callable[..., Answer]


def picture(seed: int) -> bytes:
    """One that no other test shows."""
    return encode(noise(40, 30, 8_000_000 + seed))


def encoder_server(deployment: Deployment, folder: Path, url: str = "") -> Server:
    """Always at the same ports."""
    tracing = Tracing(url=url)
    log = folder / "encoder.log"
    return Server(deployment, pool="encoder", log=log, tracing=tracing, restart_policy=MANY_RESTARTS, **PORTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoder_pool")


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture(scope="module")
def encoding(folder: Path) -> Deployment:
    return linked(folder / "encoder")


@contextmanager
def language_server(folder: Path, redis: RedisServer, url: str = "") -> Iterator[Server]:
    pool = f'url = "localhost:{PORTS["grpc_port"]}"\ntimeout_ms = 20_000\nmax_at_once = 8'
    shared = f'[encoder_cache.redis]\nurl = "{redis.url}"\ntimeout_ms = 2000\nmax_age_s = 60.0\n'
    deployment = linked(folder, encoder_cache=shared, encoder_pool=pool)
    with Server(deployment, pool="language", log=folder / "server.log", tracing=Tracing(url=url)) as running:
        yield running


@pytest.fixture(scope="module")
def pooled(encoding: Deployment, folder: Path, redis: RedisServer, collector: Collector) -> Iterator[Server]:
    """The language server. It starts before there is an encoder server."""
    with language_server(folder / "language", redis, collector.url) as running:
        yield running


@pytest.fixture(scope="module")
def encoder(pooled: Server, encoding: Deployment, folder: Path, collector: Collector) -> Iterator[Callable[[], Server]]:
    """Gives the encoder server; one that a test has stopped is started again."""
    server = encoder_server(encoding, folder, collector.url)
    running = False

    def start() -> Server:
        nonlocal running
        if not running or not _lives(server):
            server.start()
            running = True
        server.wait_until_ready(BACK_WITHIN_S)
        return server

    yield start
    server.stop()


def _lives(server: Server) -> bool:
    return server._process is not None


@pytest.fixture
def ask(pooled: Server) -> Iterator[Ask]:
    with Client(pooled.ports.grpc_url) as client:
        yield lambda *pictures, **options: client.ask(QUESTION, list(pictures), **options)


def refusal(pooled: Server, *pictures: bytes) -> str:
    return error_of(pooled.ports.grpc_url, document(QUESTION, len(pictures), max_tokens=1), list(pictures))


def test_text_needs_no_encoder_server_and_a_picture_says_that_there_is_none(pooled: Server, ask: Ask) -> None:
    """This is the first test: nothing was ever encoded."""
    assert set(pooled.stub_pids()) == {"chat", "llm"}
    assert ask(max_tokens=4).token_ids
    begun_s = time.monotonic()
    assert re.match("unavailable: no encoder server answers; fix: try again", refusal(pooled, picture(0)))
    assert time.monotonic() - begun_s < 10
    assert until(pooled, lambda now: now.get('proteus_encoder_pool_servers{state="connected"}') == 0)


def test_answers_are_those_of_a_server_that_encodes_by_itself(
    server: Server, pooled: Server, encoder: Callable[[], Server], ask: Ask
) -> None:
    assert set(encoder().stub_pids()) == {"image_preprocess", "vision_encoder", "connector"}
    _until_answered(ask, 1)
    large = encode(noise(1600, 1200, 3))
    with Client(server.ports.grpc_url) as client:
        for pictures in ([picture(2)], [picture(3), picture(4)], [large]):
            expected = client.ask(QUESTION, pictures, max_tokens=16)
            told = ask(*pictures, max_tokens=16)
            assert (told.token_ids, told.usage) == (expected.token_ids, expected.usage)
            assert list(told.pictures) == ["encoded"] * len(pictures)
    names = {name for name in metrics(pooled) if name.startswith("proteus_encoder_pool_")}
    assert until(pooled, lambda now: now['proteus_encoder_pool_requests_total{outcome="encoded"}'] >= 5), names
    assert until(pooled, lambda now: now['proteus_encoder_pool_servers{state="connected"}'] == 1)
    assert metrics(pooled)["proteus_encoder_pool_seconds_total"] > 0


def test_a_picture_that_is_to_blame_is_refused_as_by_one_server(pooled: Server, encoder: Callable[[], Server]) -> None:
    encoder()
    said = refusal(pooled, encode(noise(300, 200, 5))[:2000])
    assert said.startswith("invalid_picture: picture 1: ")


def test_stages_add_up_and_none_is_negative(pooled: Server, encoder: Callable[[], Server]) -> None:
    encoder()
    with Client(pooled.ports.grpc_url) as client:
        for number in range(12):
            one = timed(client, [encode(noise(640, 480, 100 + number), "JPEG")])
            assert all(ms >= 0 for ms in one.answer.stages_ms.values())
            assert one.told_ms == pytest.approx(one.answer.ttft_ms, abs=0.01)
            assert one.told_ms < one.measured_ms + 0.1
            assert set(one.answer.stages_ms) >= ENCODING


def test_one_trace_goes_through_both_servers(
    pooled: Server, encoder: Callable[[], Server], collector: Collector
) -> None:
    encoder()
    collector.spans.clear()
    with Client(pooled.ports.grpc_url) as client:
        client.ask(QUESTION, [picture(6)], max_tokens=1)

    def names(spans: list[dict[str, Any]]) -> dict[str, set[str]]:
        by_trace: dict[str, set[str]] = {}
        for span in spans:
            by_trace.setdefault(span["traceId"], set()).add(span["name"])
        return by_trace

    def is_whole(spans: list[dict[str, Any]]) -> bool:
        return any({"chat request", "image_tokens", "vision_encoder"} <= trace for trace in names(spans).values())

    assert is_whole(collector.until(is_whole)), names(collector.spans)


def test_tenants_share_nothing_on_the_encoder_server(encoder: Callable[[], Server], ask: Ask) -> None:
    encoder()
    for scope in ("one", "another", ""):
        answer = ask(picture(7), cache_scope=scope, max_tokens=1)
        assert list(answer.pictures) == ["encoded"]
        assert answer.caches["processor"]["hits"] == 0


def test_two_language_servers_share_what_the_pool_encoded(
    encoder: Callable[[], Server], ask: Ask, redis: RedisServer, folder: Path
) -> None:
    encoder()
    entries = len(redis.entries())
    first = ask(picture(8), cache_scope="tenant", max_tokens=8)
    with language_server(folder / "other", redis) as other, Client(other.ports.grpc_url) as client:
        last_s = time.monotonic() + 10
        while len(redis.entries()) == entries and time.monotonic() < last_s:
            time.sleep(0.02)
        again = client.ask(QUESTION, [picture(8)], cache_scope="tenant", max_tokens=8)
        assert (again.token_ids, again.caches["encoder"]["hits"]) == (first.token_ids, 1)
        assert client.ask(QUESTION, [picture(8)], cache_scope="x", max_tokens=1).caches["encoder"]["hits"] == 0
        assert metrics(other).get('proteus_encoder_pool_requests_total{outcome="encoded"}', 0) <= 1


def test_a_killed_encoder_costs_seconds_and_loses_nobody(
    pooled: Server, encoder: Callable[[], Server], ask: Ask
) -> None:
    server = encoder()
    restarts = server.restarts

    def outcome(client: Client, seed: int) -> str:
        try:
            client.ask(QUESTION, [picture(seed)], max_tokens=2, timeout_s=50)
        except ClientError as error:
            return str(error)
        return "answer"

    with Client(pooled.ports.grpc_url) as client, ThreadPoolExecutor(8) as threads:
        outcomes = [threads.submit(outcome, client, 1_000 + number) for number in range(64)]
        time.sleep(0.3)
        os.kill(server.stub_pids()["vision_encoder"][0], signal.SIGKILL)
        text = client.ask("Say something.", max_tokens=2)
        server.wait_until_ready(BACK_WITHIN_S, restarts=restarts + 1)
        said = {one.result(timeout=60) for one in outcomes}
    assert text.token_ids
    others = said - {"answer"}
    assert all("does not answer" in error or "no encoder server answers" in error for error in others), others
    assert pooled.restarts == 0
    _until_answered(ask, 1_099)


def test_while_no_server_encodes_what_is_kept_is_answered_and_one_of_another_checkpoint_is_refused(
    encoder: Callable[[], Server], encoding: Deployment, folder: Path, pooled: Server, ask: Ask
) -> None:
    server = encoder()
    first = ask(picture(9), max_tokens=4)
    server.stop()
    assert ask(picture(9), max_tokens=4).token_ids == first.token_ids
    assert ask(max_tokens=4).token_ids
    assert refusal(pooled, picture(10)).startswith("unavailable: no encoder server answers")
    with other_revision(encoding), encoder_server(encoding, folder):
        last_s = time.monotonic() + 10  # until the connection is made anew
        while "another checkpoint" not in (said := refusal(pooled, picture(11))) and time.monotonic() < last_s:
            time.sleep(0.1)
        assert said.startswith("unavailable: an encoder server serves another checkpoint than this server")
        assert OTHER not in said
    encoder()
    _until_answered(ask, 11)
    assert pooled.restarts == 0


@contextmanager
def other_revision(deployment: Deployment) -> Iterator[None]:
    """As if another checkpoint had been exported there."""
    config = deployment.repository_path / "image_tokens" / "config.pbtxt"
    right = config.read_text()
    wrong = re.sub(r'(key: "revision" value: { string_value: ")[0-9a-f]+', rf"\g<1>{OTHER}", right)
    assert wrong != right
    config.write_text(wrong)
    try:
        yield
    finally:
        config.write_text(right)


def _until_answered(ask: Ask, seed: int) -> None:
    """The language server finds an encoder server that is back within a second or two."""
    last_s = time.monotonic() + 10
    while True:
        try:
            ask(picture(seed), max_tokens=1)
            return
        except ClientError:
            if time.monotonic() > last_s:
                raise
            time.sleep(0.1)
