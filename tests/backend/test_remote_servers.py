"""Several encoder servers, that come, go, fail and differ."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from grpc import StatusCode

from proteus.backend import remote, remote_server
from proteus.backend.remote import RemoteEncoders
from proteus.backend.remote_server import Wanted
from proteus.errors import (
    DeadlineExceeded,
    InternalError,
    Unavailable,
)
from proteus.limits_gpu import EncoderPool
from tests.backend.remote_encoder import (
    REVISION,
    ROWS,
    SECRET,
    WANTED,
    WIDTH,
    FakeEncoder,
    encode,
    free_port,
    pool_of,
    run,
    until,
)


def test_what_one_server_fails_to_answer_another_is_asked() -> None:
    async def scenario() -> None:
        async with FakeEncoder() as one, FakeEncoder() as other, pool_of(one, other) as pool:
            one.fails = StatusCode.UNAVAILABLE, SECRET
            while not one.requests:
                await encode(pool)
            failed = len(one.requests)
            for _ in range(8):
                await encode(pool)
            assert (failed, len(one.requests)) == (1, 1), "who failed rests"
            assert len(other.requests) == pool.figures().outcomes["encoded"]
            other.fails = one.fails
            with pytest.raises(Unavailable, match="no encoder server answers"):
                await encode(pool)

    run(scenario())


@pytest.mark.parametrize("text", [SECRET, "Stub process 'vision_encoder_0_0' is not healthy."])
def test_a_server_that_fails_at_once_is_not_the_first_choice_for_having_nothing_to_do(text: str) -> None:
    """As one whose GPU fell off the bus: it fails faster than any other answers."""

    async def scenario() -> None:
        async with FakeEncoder() as broken, FakeEncoder() as other, pool_of(broken, other) as pool:
            broken.fails = StatusCode.INTERNAL, text
            for _ in range(16):
                with suppress(InternalError):
                    await encode(pool)
            assert len(broken.requests) <= 1
            assert len(other.requests) >= 15

    run(scenario())


def test_the_server_with_the_least_to_do_is_asked() -> None:
    async def scenario() -> None:
        async with FakeEncoder() as one, FakeEncoder() as other, pool_of(one, other, max_at_once=8) as pool:
            await encode(pool)
            await until(lambda: pool.figures().connected == 2)
            for encoder in (one, other):
                encoder.requests.clear()
                encoder.go_on.clear()
            pictures = [asyncio.create_task(encode(pool)) for _ in range(8)]
            await until(lambda: len(one.requests) + len(other.requests) == 8)
            assert len(one.requests) == len(other.requests) == 4
            for encoder in (one, other):
                encoder.go_on.set()
            await asyncio.gather(*pictures)

    run(scenario())


def test_a_server_that_was_restarted_is_found_again_and_asked_what_it_is() -> None:
    async def scenario() -> None:
        async with FakeEncoder() as first, pool_of(first) as pool:
            before = (await encode(pool)).encoder
            await encode(pool)
            assert first.asked_what == 1, "once for each connection"
            await first.__aexit__()
            with pytest.raises(Unavailable):
                await encode(pool)
            assert await pool.encoder() == before, "what is kept is found while nobody answers"
            async with FakeEncoder(first.port, version="2.62.0") as second:
                while True:
                    try:
                        after = (await encode(pool)).encoder
                        break
                    except Unavailable:
                        await asyncio.sleep(0.05)
                assert after != before
                assert await pool.encoder() == after
                assert second.asked_what >= 1

    run(scenario())


@pytest.mark.parametrize("change", [{"backend": "x"}, {"default": "y"}])
def test_servers_that_differ_in_what_runs_the_encoder_have_different_names(change: dict[str, str]) -> None:
    async def scenario() -> None:
        async with FakeEncoder() as one, FakeEncoder() as same, FakeEncoder() as other:
            other.parameters = change
            names = []
            for encoder in (one, same, other):
                async with pool_of(encoder) as pool:
                    names.append(await pool.encoder())
            assert names[0] == names[1] != names[2]

    run(scenario())


@pytest.mark.parametrize(
    "wanted", [replace(WANTED, revision="another"), replace(WANTED, shape=(ROWS, 1 + WIDTH))], ids=["revision", "shape"]
)
def test_a_server_of_another_checkpoint_is_never_sent_a_picture(
    wanted: Wanted, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with FakeEncoder() as encoder, pool_of(encoder, wanted=wanted) as pool:
            for _ in range(3):
                with pytest.raises(Unavailable, match="another checkpoint than this server"):
                    await encode(pool)
            with pytest.raises(Unavailable, match="another checkpoint"):
                await pool.encoder()
            assert encoder.requests == []

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert [REVISION in record.message for record in caplog.records] == [True], "said once"


def test_a_server_that_tells_no_revision_is_not_trusted_and_the_others_are_asked() -> None:
    async def scenario() -> None:
        async with FakeEncoder(revision="") as wrong, FakeEncoder() as right, pool_of(wrong, right) as pool:
            for _ in range(8):
                await encode(pool)
            assert (len(wrong.requests), len(right.requests)) == (0, 8)

    run(scenario())


def test_servers_of_another_checkpoint_fail_no_picture_for_as_long_as_they_are_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the middle of an upgrade: more than one second time would find."""
    monkeypatch.setattr(remote_server, "REST_S", 0.0)

    async def scenario() -> None:
        wrong = [FakeEncoder(revision=f"new {number}") for number in range(2)]
        async with wrong[0], wrong[1], FakeEncoder() as right, pool_of(*wrong, right) as pool:
            while not all(encoder.asked_what for encoder in (*wrong, right)):
                with suppress(Unavailable):
                    await encode(pool)
            await until(lambda: pool.figures().connected == 3)
            asked = [encoder.asked_what for encoder in wrong]
            for _ in range(16):
                await encode(pool)
            assert [encoder.asked_what for encoder in wrong] == asked
            await wrong[0].__aexit__()
            async with FakeEncoder(wrong[0].port) as upgraded:
                while not upgraded.requests:
                    await encode(pool)

    run(scenario())


def test_servers_come_and_go_with_the_addresses_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[FakeEncoder] = []

    async def targets(url: str) -> frozenset[str]:
        return frozenset(encoder.target for encoder in there)

    async def connected(pool: RemoteEncoders, number: int) -> None:
        while pool.figures().known != number or pool.figures().connected != number:
            with suppress(Unavailable):
                await encode(pool)
            await asyncio.sleep(0.01)

    async def scenario() -> None:
        async with FakeEncoder() as one, FakeEncoder() as other, pool_of(one, timeout_ms=2_000) as pool:
            monkeypatch.setattr(remote, "_targets", targets)
            with pytest.raises(Unavailable, match="no encoder server is found"):
                await encode(pool)
            there.append(one)
            await connected(pool, 1)
            there.append(other)
            await connected(pool, 2)
            one.go_on.clear()
            before = len(one.requests)
            held = [asyncio.create_task(encode(pool)) for _ in range(2)]
            await until(lambda: len(one.requests) > before and any(picture.done() for picture in held))
            there.remove(one)
            await connected(pool, 1)
            one.go_on.set()
            await asyncio.gather(*held)  # what it had under way, the one that is gone has ended
            before = len(one.requests)
            await encode(pool)
            assert len(one.requests) == before

    monkeypatch.setattr(remote, "LOOK_UP_S", 0.02)
    run(scenario())


def test_a_picture_after_a_long_pause_finds_servers_that_are_all_other_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[FakeEncoder] = []

    async def targets(url: str) -> frozenset[str]:
        return frozenset(encoder.target for encoder in there)

    async def scenario() -> None:
        async with FakeEncoder() as first, FakeEncoder() as second, pool_of(first) as pool:
            monkeypatch.setattr(remote, "_targets", targets)
            there.append(first)
            await encode(pool)
            there[:] = [second]
            await first.__aexit__()
            await encode(pool)
            assert (len(first.requests), len(second.requests)) == (1, 1)

    run(scenario())


@pytest.mark.parametrize("host", ["no-such-host.invalid", "no-such-host.invalid..pod"])
def test_a_name_that_nobody_knows_is_unavailable_and_its_cause_stays_in_the_log(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        limits = EncoderPool(url=f"{host}:8001", timeout_ms=10_000, max_at_once=1)
        pool = RemoteEncoders(limits, WANTED)
        for ask in (encode(pool), pool.encoder()):
            with pytest.raises(Unavailable) as raised:
                await ask
            assert "no-such-host" not in str(raised.value)
        await pool.aclose()

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert any("no-such-host.invalid" in record.message for record in caplog.records)


def test_a_loop_that_goes_on_lets_the_connections_be_closed_from_another_thread() -> None:
    async def scenario() -> None:
        async with FakeEncoder() as encoder, pool_of(encoder) as pool:
            await encode(pool)
            await asyncio.get_running_loop().run_in_executor(None, pool.close)
            assert pool.figures().known == 0

    run(scenario())


def test_nothing_answers_at_all() -> None:
    async def scenario() -> None:
        away = FakeEncoder(free_port())
        async with pool_of(away) as pool:
            with pytest.raises(Unavailable, match="no encoder server answers; fix: try again"):
                await encode(pool)
            assert pool.figures().outcomes == {"unavailable": 1}

    run(scenario())


def test_a_host_of_both_kinds_of_addresses_is_no_two_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> Sequence[frozenset[str]]:
        return [await remote._targets(url) for url in ("127.0.0.1:8001", "localhost:8001")]

    assert asyncio.run(scenario()) == [frozenset({"ipv4:127.0.0.1:8001"})] * 2


def test_who_rests_is_asked_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_server, "REST_S", 0.2)

    async def scenario() -> None:
        async with FakeEncoder() as slow, FakeEncoder() as other, pool_of(slow, other, timeout_ms=300) as pool:
            slow.go_on.clear()
            late = 0
            for _ in range(4):
                try:
                    await encode(pool)
                except DeadlineExceeded:
                    late += 1
            assert late <= 1
            slow.go_on.set()
            await asyncio.sleep(0.2)
            await encode(pool)

    run(scenario())
