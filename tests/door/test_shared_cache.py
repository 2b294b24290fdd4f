"""Two doors with one real Redis between them, and models that count what they encode."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proteus.cache.key import PixelRules
from proteus.deployment import Deployment
from proteus.door.chat import Chat
from proteus.door.encoding import Versions
from proteus.families.llava import LlavaFamily
from proteus.language.prompt import PromptRenderer
from proteus.limits_cache import EncoderCache
from tests.door.test_chat import BLUE, DEMO, DETOKENIZER, FAMILY, MANIFEST, RED, Client, Models, call, run
from tests.redis_server import RedisServer

PATIENT_MS = 10_000


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@asynccontextmanager
async def door(models: Models, redis: RedisServer, **changes: Any) -> AsyncIterator[Chat]:
    """As the demo's, with a Redis behind its encoder cache."""
    table = {"url": redis.url, "timeout_ms": PATIENT_MS, "max_age_s": 60.0} | changes
    cache = EncoderCache.model_validate({"max_bytes": 1 << 20, "max_age_s": 60.0, "redis": table})
    deployment = DEMO.model_copy(update={"encoder_cache": cache})
    renderer = PromptRenderer.from_checkpoint(DEMO.checkpoint_path)
    chat = Chat(deployment, MANIFEST, FAMILY, renderer, DETOKENIZER, models)
    yield chat
    await asyncio.to_thread(chat.close)


async def ask(chat: Chat, *pictures: bytes, **fields: Any) -> dict[str, Any]:
    """The report of one question; what is written behind it is written when it is given back."""
    client = Client()
    await chat.answer(call("?", *pictures, **fields), client)
    await chat._encoding._shared.written()  # type: ignore[union-attr]
    return client.reports[0]


def test_what_one_door_encoded_the_other_finds_and_then_has_itself(redis: RedisServer) -> None:
    async def scenario() -> None:
        ours, theirs = Models(), Models()
        async with door(ours, redis) as one, door(theirs, redis) as other:
            assert (await ask(one, RED, BLUE))["pictures"] == ["encoded", "encoded"]
            report = await ask(other, RED)
            assert report["pictures"] == ["cached"]
            assert report["caches"]["encoder"]["hits"] == 1
            assert report["caches"]["encoder"]["saved_ms"] > 0
            assert not {"preprocess", "encode", "connector"} & report["stages_ms"].keys()
            assert (len(ours.encoded), len(theirs.encoded)) == (2, 0)
            sent, given = ours.calls[0].visual_tokens, theirs.calls[0].visual_tokens
            assert sent is not None
            assert given is not None
            assert np.array_equal(given, sent[: FAMILY.visual_tokens])
            redis.kill()
            assert (await ask(other, RED))["pictures"] == ["cached"], "from its own memory"
            figures = other.cache_figures()
            assert figures.values("proteus_encoder_cache_hits_total") == {"local": 1, "redis": 1}
            assert figures.values("proteus_encoder_cache_lookups_total") == {"": 2}

    run(scenario())


def test_what_comes_from_redis_is_kept_no_longer_than_what_was_made_here(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with door(Models(), redis, max_age_s=100.0) as one, door(Models(), redis, max_age_s=100.0) as other:
            await ask(one, RED)
            now_s = time.time
            monkeypatch.setattr(other._encoding._shared, "_wall_s", lambda: now_s() + 70.0)
            assert [(await ask(other, RED))["pictures"] for _ in range(2)] == [["cached"]] * 2
            assert other.cache_figures().store.held == 0, "made more than the 60 s ago that it keeps things"
            monkeypatch.setattr(other._encoding._shared, "_wall_s", lambda: now_s() + 50.0)
            await ask(other, RED)
            assert other.cache_figures().store.held == 1
            (kept,) = other._encoding._store._held.values()
            assert 50.0 <= time.monotonic() - kept.made_s < 60.0

    run(scenario())


@pytest.mark.parametrize("scope", ["other", "", "Tenant", "tenant "])
def test_nobody_finds_anything_of_another_scope(redis: RedisServer, scope: str) -> None:
    async def scenario() -> None:
        theirs = Models()
        async with door(Models(), redis) as one, door(theirs, redis) as other:
            await ask(one, RED, cache_scope="tenant")
            assert (await ask(other, RED, cache_scope=scope))["pictures"] == ["encoded"]
            assert len(theirs.encoded) == 1
            assert (await ask(other, RED, cache_scope="tenant"))["pictures"] == ["cached"]

    run(scenario())


def test_another_version_of_decoders_or_encoder_finds_nothing(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = Versions.of(DEMO, MANIFEST, FAMILY)
    changed: list[Versions] = [
        replace(now, pixels=replace(now.pixels, decoders=now.pixels.decoders + ", and another")),
        replace(now, pixels=replace(now.pixels, policy="clip-pil-3")),
        replace(now, pixels=replace(now.pixels, resize=replace(now.pixels.resize, resample=2))),
        replace(now, encoder=replace(now.encoder, revision="another")),
        replace(now, encoder=replace(now.encoder, graphs="another")),
        replace(now, encoder=replace(now.encoder, runtime="another")),
        replace(now, encoder=replace(now.encoder, dtype="FP16")),
    ]

    async def report_of(versions: Versions) -> dict[str, Any]:
        monkeypatch.setattr(Versions, "of", lambda *_: versions)
        async with door(Models(), redis) as chat:
            return await ask(chat, RED)

    async def scenario() -> None:
        seen = [(await report_of(versions))["pictures"] for versions in (now, now, *changed)]
        assert seen == [["encoded"], ["cached"], *[["encoded"]] * len(changed)]

    run(scenario())


def test_answers_go_on_when_redis_hangs_and_dies_and_wait_for_it_once(redis: RedisServer) -> None:
    async def scenario() -> None:
        models = Models()
        async with door(models, redis, timeout_ms=500) as chat:
            await ask(chat, RED)
            redis.hold()
            loop = asyncio.get_running_loop()
            begun_s = loop.time()
            reports = await asyncio.gather(*(ask(chat, BLUE, max_tokens=number + 1) for number in range(8)))
            assert loop.time() - begun_s < 10.0, "one timeout, however busy the machine is"
            assert sorted(report["pictures"][0] for report in reports) == ["encoded"] + ["shared"] * 7
            assert len(models.encoded) == 2
            redis.let_go()
            redis.kill()
            assert (await ask(chat, RED))["pictures"] == ["cached"]

    run(scenario())


def test_a_cache_that_is_off_asks_no_redis(redis: RedisServer) -> None:
    cache = EncoderCache.model_validate(
        {"max_bytes": 0, "max_age_s": 1.0, "redis": {"url": redis.url, "timeout_ms": 1, "max_age_s": 1.0}}
    )
    deployment = DEMO.model_copy(update={"encoder_cache": cache})
    chat = Chat(
        deployment, MANIFEST, FAMILY, PromptRenderer.from_checkpoint(DEMO.checkpoint_path), DETOKENIZER, Models()
    )
    assert chat._encoding._shared is None


def test_the_version_names_every_file_that_encoder_and_connector_run(tmp_path: Path) -> None:
    def versions() -> Versions:
        deployment = Deployment.model_construct(repository=str(tmp_path), image=DEMO.image)
        return Versions.of(deployment, MANIFEST, FAMILY)

    files = [tmp_path / model / "1" / name for model in ("vision_encoder", "connector") for name in ("a", "b")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"weights")
    seen = [versions().encoder.graphs]
    for file in files:
        file.write_bytes(b"others")
        seen.append(versions().encoder.graphs)
    files[0].rename(files[0].with_name("c"))
    seen.append(versions().encoder.graphs)
    assert len(set(seen)) == len(seen)


def test_the_version_names_the_decoders_the_policy_and_the_rules_of_the_checkpoint() -> None:
    pixels: PixelRules = Versions.of(DEMO, MANIFEST, FAMILY).pixels
    for library in ("pil 1", "libjpeg_turbo", "webp", "avif", "libheif", "libde265", "numpy"):
        assert library in pixels.decoders
    assert pixels.policy.startswith("clip-pil-")
    assert pixels.resize == LlavaFamily.from_checkpoint(DEMO.checkpoint_path).resize
    assert (pixels.background_rgb, pixels.animation) == ((255, 255, 255), "first_frame")
