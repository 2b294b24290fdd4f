"""Pictures encoded by another server, which here is a gRPC service that does as the test says."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from grpc import StatusCode

from proteus.backend.fleet import Context
from proteus.backend.spans import Trace
from proteus.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidPicture,
    MediaTooLarge,
    ProteusError,
    QueueFull,
    Unavailable,
)
from tests.backend.remote_encoder import (
    NO_CONTEXT,
    ROWS,
    SECRET,
    WIDTH,
    FakeEncoder,
    encode,
    pool_of,
    run,
    until,
)


def test_a_picture_goes_there_with_all_that_a_call_hands_on() -> None:
    async def scenario() -> None:
        trace = Trace("0" * 31 + "1", "2" * 16)
        context = Context(request_id="r1", parameters={}, timeout_us=5_000_000, trace=trace)
        async with FakeEncoder() as encoder, pool_of(encoder) as pool:
            encoded = await pool.image_tokens(b"bytes", b"s" * 32, context, (64, 48))
            assert np.array_equal(encoded.visual_tokens, encoder.outputs["visual_tokens"][0])
            assert encoded.preprocess_saved_us == 5
            assert encoded.encoder == await pool.encoder() != ""
            (request,) = encoder.requests
            assert (request.model_name, request.id) == ("image_tokens", "r1")
            assert 0 < request.parameters["timeout"].int64_param <= 5_000_000
            described = [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in request.inputs]
            assert described == [
                ("image_bytes", "UINT8", [1, 5]),
                ("scope_key", "UINT8", [1, 32]),
                ("target_px", "INT32", [1, 2]),
            ]
            *given, target_px = request.raw_input_contents
            assert given == [b"bytes", b"s" * 32]
            assert np.frombuffer(target_px, dtype=np.int32).tolist() == [64, 48]
            assert {output.name for output in request.outputs} == encoder.outputs.keys()
            assert encoder.metadata[0]["traceparent"] == f"00-{trace.trace_id}-{trace.root_id}-01"

    run(scenario())


def test_pictures_may_be_as_large_as_the_door_lets_them() -> None:
    async def scenario() -> None:
        async with FakeEncoder() as encoder, pool_of(encoder) as pool:
            await encode(pool, b"x" * (20 << 20))
            assert len(encoder.requests[0].raw_input_contents[0]) == 20 << 20

    run(scenario())


@pytest.mark.parametrize(
    ("status", "text", "kind", "said"),
    [
        (
            StatusCode.INTERNAL,
            "in ensemble: invalid_picture: truncated; fix: send it whole",
            InvalidPicture,
            "truncated",
        ),
        (StatusCode.INVALID_ARGUMENT, "media_too_large: 9 px; limit: 8", MediaTooLarge, "limit: 8"),
        (StatusCode.UNAVAILABLE, "Exceeds maximum queue size", QueueFull, "image_tokens"),
        (StatusCode.UNAVAILABLE, "Request timeout expired", DeadlineExceeded, "not started"),
        (StatusCode.INTERNAL, "Stub process 'x' is not healthy.", Unavailable, "does not answer"),
        (StatusCode.UNAVAILABLE, SECRET, Unavailable, "no encoder server answers"),
        (StatusCode.CANCELLED, SECRET, Unavailable, "no encoder server answers"),
        (StatusCode.NOT_FOUND, SECRET, Unavailable, "has no image_tokens"),
        (StatusCode.UNIMPLEMENTED, SECRET, Unavailable, "has no image_tokens"),
        (StatusCode.INTERNAL, SECRET, InternalError, "could not finish"),
        (StatusCode.UNKNOWN, SECRET, InternalError, "could not finish"),
        (StatusCode.RESOURCE_EXHAUSTED, SECRET, InternalError, "could not finish"),
    ],
)
def test_errors_of_models_are_revived_and_nothing_else_is_told(
    status: StatusCode, text: str, kind: type[ProteusError], said: str
) -> None:
    async def scenario() -> None:
        async with FakeEncoder() as encoder, pool_of(encoder) as pool:
            encoder.fails = status, text
            with pytest.raises(kind) as raised:
                await encode(pool)
            assert said in str(raised.value)
            assert SECRET not in str(raised.value)
            again = 1 if kind is Unavailable else 0  # what is not known to have been answered is sent once more
            assert len(encoder.requests) == 1 + again
            told = pool.figures()
            assert (told.outcomes, told.retries, told.under_way) == ({kind.code: 1}, again, 0)

    run(scenario())


@pytest.mark.parametrize(
    "outputs",
    [
        {"visual_tokens": np.zeros((ROWS, WIDTH), dtype=np.float32)},
        {"visual_tokens": np.zeros((2, ROWS, WIDTH), dtype=np.float32)},
        {"visual_tokens": np.zeros((1, ROWS, WIDTH))},
        {"preprocess_ns": np.array([1, 2, 3])},
        {"encoder_ns": None},
        {"another": np.array([1])},
    ],
)
def test_an_answer_against_the_contract_is_used_by_nobody_and_logged(
    outputs: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with FakeEncoder() as encoder, pool_of(encoder) as pool:
            changed = encoder.outputs | {name: array for name, array in outputs.items() if array is not None}
            encoder.outputs = {name: changed[name] for name in changed if outputs.get(name, 0) is not None}
            with pytest.raises(InternalError):
                await encode(pool)

    run(scenario())
    assert "against the contract" in caplog.text


def test_no_more_are_under_way_than_the_limit_and_the_others_wait_for_their_own_time() -> None:
    async def scenario() -> None:
        async with FakeEncoder() as encoder, pool_of(encoder, max_at_once=2) as pool:
            encoder.go_on.clear()
            pictures = [asyncio.create_task(encode(pool)) for _ in range(5)]
            await until(lambda: len(encoder.requests) == 2)
            told = pool.figures()
            assert (told.under_way, told.waiting) == (2, 3)
            with pytest.raises(DeadlineExceeded, match=r"max_at_once = 2"):
                await encode(pool, context=replace(NO_CONTEXT, timeout_us=50_000))
            pictures[-1].cancel()
            await until(lambda: pool.figures().waiting == 2)
            encoder.go_on.set()
            await asyncio.gather(*pictures[:-1])
            assert (told.under_way, told.waiting, len(encoder.requests)) == (0, 0, 4)
            assert told.outcomes == {"encoded": 4, "cancelled": 1, "deadline_exceeded": 1}
            assert told.values("proteus_encoder_pool_pictures") == {"under_way": 0, "max": 2, "waiting": 0}
            assert told.values("proteus_encoder_pool_servers") == {"known": 1, "connected": 1}
            assert told.values("proteus_encoder_pool_seconds_total")[""] > 0

    run(scenario())


@pytest.mark.parametrize(
    ("timeout_us", "timeout_ms", "limit"),
    [(200_000, 10_000, "Triton's timeout of the request"), (0, 200, "[encoder_pool] timeout_ms = 200")],
)
def test_a_picture_that_takes_too_long_is_given_up_here_and_there(timeout_us: int, timeout_ms: int, limit: str) -> None:
    async def scenario() -> None:
        async with FakeEncoder() as encoder, pool_of(encoder, timeout_ms=timeout_ms) as pool:
            encoder.go_on.clear()
            with pytest.raises(DeadlineExceeded) as raised:
                await encode(pool, context=replace(NO_CONTEXT, timeout_us=timeout_us))
            assert limit in str(raised.value)
            await until(lambda: encoder.cancelled == len(encoder.requests) == 1)

    run(scenario())


def test_a_picture_that_nobody_waits_for_is_cancelled_there() -> None:
    async def scenario() -> None:
        async with FakeEncoder() as encoder, pool_of(encoder) as pool:
            encoder.go_on.clear()
            picture = asyncio.create_task(encode(pool))
            await until(lambda: encoder.requests)
            picture.cancel()
            await until(lambda: encoder.cancelled)
            assert pool.figures().outcomes == {"cancelled": 1}

    run(scenario())
