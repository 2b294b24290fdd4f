"""Both clients draw with a peer that speaks the protocol."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from PIL import Image

from proteus.client import (
    AsyncClient,
    Client,
    ConnectionFailed,
    Drawing,
    Drawn,
    DrawOptions,
    DrawUsage,
    InvalidInput,
    PictureCost,
    Preview,
    ServerError,
    TimedOut,
)
from proteus.client.draw_request import build_draw
from proteus.door.draw_request import DrawRequest
from tests.client.draw_scripts import DRAW_REFUSAL, REVISION, SEED, STAGES_MS
from tests.client.peer import Peer

PROMPT = "a red circle"
Items = list[Preview | Drawn | Drawing]


def stream_async(url: str, prompt: str, **options: Any) -> Items:
    async def run() -> Items:
        async with AsyncClient(url) as client:
            return [item async for item in client.stream_draw(prompt, **options)]

    return asyncio.run(run())


def stream_blocking(url: str, prompt: str, **options: Any) -> Items:
    with Client(url) as client:
        return list(client.stream_draw(prompt, **options))


def draw_async(url: str, prompt: str, **options: Any) -> Drawing:
    async def run() -> Drawing:
        async with AsyncClient(url) as client:
            return await client.draw(prompt, **options)

    return asyncio.run(run())


def draw_blocking(url: str, prompt: str, **options: Any) -> Drawing:
    with Client(url) as client:
        return client.draw(prompt, **options)


Draw = Callable[..., Drawing]
both = pytest.mark.parametrize("draw", [draw_blocking, draw_async])
both_streams = pytest.mark.parametrize("stream", [stream_blocking, stream_async])


@both
def test_a_drawing_is_typed_and_whole(draw: Draw, peer: Peer) -> None:
    drawing = draw(peer.url, PROMPT, n=2, first_index=3, seed=7, preview_every=5)
    assert [(drawn.index, drawn.seed, drawn.image_index) for drawn in drawing.pictures] == [(0, 7, 3), (1, 7, 4)]
    assert drawing.pictures[1].settings == {
        "prompt": PROMPT,
        "negative_prompt": "",
        "size": "64x64",
        "steps": 20,
        "guidance": 3.0,
        "sampler": "euler",
        "seed": 7,
        "image_index": 4,
        "revision": REVISION,
    }
    assert drawing.usage == DrawUsage(
        images=2, text_tokens=12, evaluations=80, branches=2, latent_tokens=64, token_passes=5120
    )
    assert drawing.costs[1] == PictureCost(
        index=1, evaluations=40, accelerator_ms=100.5, queue_ms=0.5, denoise_ms=250.5
    )
    assert list(drawing.stages_ms.items()) == list(STAGES_MS.items())
    assert (drawing.finish_reason, drawing.first_preview_ms) == ("done", 40.25)


@both
def test_a_seed_that_the_server_chose_is_told(draw: Draw, peer: Peer) -> None:
    drawing = draw(peer.url, PROMPT)
    assert [drawn.seed for drawn in drawing.pictures] == [SEED]
    assert drawing.first_preview_ms is None
    assert peer.documents == [{"prompt": PROMPT}]


@pytest.mark.parametrize(("format", "kind"), [("png", "PNG"), ("jpeg", "JPEG"), ("webp", "WEBP")])
def test_a_picture_is_opened_and_saved_byte_for_byte(format: str, kind: str, peer: Peer, tmp_path: Path) -> None:
    (drawn,) = draw_blocking(peer.url, PROMPT, format=format, size="48x32").pictures
    assert (drawn.format, drawn.width_px, drawn.height_px) == (format, 48, 32)
    assert drawn.image.size == (48, 32)
    assert drawn.save(tmp_path / "a") == tmp_path / "a"
    assert (tmp_path / "a").read_bytes() == drawn.data
    with Image.open(tmp_path / "a") as saved:
        assert saved.format == kind


def test_a_picture_that_cannot_be_saved_is_said_in_plain_words(peer: Peer, tmp_path: Path) -> None:
    (drawn,) = draw_blocking(peer.url, PROMPT).pictures
    with pytest.raises(InvalidInput, match=r"cannot write the picture .*: No such file"):
        drawn.save(tmp_path / "nowhere" / "a.png")
    drawn.save(tmp_path / "a.png")
    with pytest.raises(InvalidInput, match=r"cannot write the picture .*: File exists"):
        drawn.save(str(tmp_path / "a.png"), overwrite=False)
    with pytest.raises(InvalidInput, match="this is no file name"):
        drawn.save("a\0b")


@both_streams
def test_previews_come_first_then_pictures_as_they_are_done_and_the_drawing_last(
    stream: Callable[..., Items], peer: Peer
) -> None:
    *items, drawing = stream(peer.url, PROMPT, n=2, steps=3, preview_every=2)
    assert [(type(item), item.index) for item in items if not isinstance(item, Drawing)] == [
        (Preview, 0),
        (Preview, 1),
        (Drawn, 1),
        (Drawn, 0),
    ]
    preview = cast(Preview, items[1])
    assert (preview.step, preview.steps, preview.image.size) == (2, 3, (32, 32))
    assert preview.image.getpixel((0, 0)) == (20, 50, 200)
    assert isinstance(drawing, Drawing)
    assert drawing.pictures == (items[3], items[2])


@both
def test_a_drawing_that_was_stopped_holds_what_was_done(draw: Draw, peer: Peer) -> None:
    drawing = draw(peer.url, "stopped", n=2)
    assert ([drawn.index for drawn in drawing.pictures], drawing.finish_reason) == ([0], "cancelled")


@both
def test_a_refusal_keeps_the_servers_words(draw: Draw, peer: Peer) -> None:
    with pytest.raises(ServerError) as caught:
        draw(peer.url, "refuse", steps=1000)
    assert str(caught.value) == DRAW_REFUSAL
    assert (caught.value.code, caught.value.limit) == ("invalid_request", "[draw] max_steps = 100")


@both
@pytest.mark.parametrize(("prompt", "code"), [("break off", "internal"), ("end early", "incomplete")])
def test_half_a_drawing_is_never_taken_for_a_whole(draw: Draw, prompt: str, code: str, peer: Peer) -> None:
    with pytest.raises(ServerError) as caught:
        draw(peer.url, prompt, n=2)
    assert caught.value.code == code


@both
def test_a_server_that_does_not_draw_is_said_so(draw: Draw, peer: Peer) -> None:
    del peer.published["draw"]
    with pytest.raises(ServerError, match="unknown model: 'draw'") as caught:
        draw(peer.url, PROMPT)
    assert caught.value.is_unknown_model


@both
def test_a_server_that_goes_away_is_said_so(draw: Draw, peer: Peer) -> None:
    with pytest.raises(ConnectionFailed, match="went away before the answer was complete"):
        draw(peer.url, "go away")


@both
def test_no_server_is_said_in_plain_words(draw: Draw, closed_url: str) -> None:
    with pytest.raises(ConnectionFailed, match="start one with `proteus serve`"):
        draw(closed_url, PROMPT)


@both
def test_a_timeout_stops_the_drawing_at_the_server(draw: Draw, peer: Peer) -> None:
    with pytest.raises(TimedOut, match=r"raise timeout_s = 0\.3 or ask for less"):
        draw(peer.url, "never end", timeout_s=0.3)
    assert peer.cancelled.wait(timeout=10)


def test_closing_the_iterator_cancels_at_the_server(peer: Peer) -> None:
    with Client(peer.url) as client:
        stream = client.stream_draw("never end")
        assert isinstance(next(stream), Drawn)
        cast(Generator[Drawn, None, None], stream).close()
        assert peer.cancelled.wait(timeout=10)


def test_forgetting_the_iterator_cancels_at_the_server(peer: Peer) -> None:
    with Client(peer.url) as client:
        for _ in client.stream_draw("never end"):
            break
        gc.collect()
        assert peer.cancelled.wait(timeout=10)


def test_closing_the_async_iterator_cancels_at_the_server(peer: Peer) -> None:
    async def run() -> None:
        async with AsyncClient(peer.url) as client:
            stream = cast(AsyncGenerator[Drawn, None], client.stream_draw("never end"))
            assert isinstance(await anext(stream), Drawn)
            await stream.aclose()
            assert await asyncio.to_thread(peer.cancelled.wait, 10)

    asyncio.run(run())


@pytest.mark.parametrize("model", ["chat", "draw"])
def test_a_stop_is_asked_of_the_model_that_is_named(model: Any, peer: Peer) -> None:
    async def stop() -> int:
        async with AsyncClient(peer.url) as client:
            return await client.stop("mine", model=model, tenant="t")

    with Client(peer.url) as client:
        assert (client.stop("mine", model=model, tenant="t"), asyncio.run(stop())) == (1, 1)
    assert [request.model_name for request in peer.requests] == [model] * 2
    assert peer.documents == [{"stop": {"request_id": "mine", "cache_scope": "", "tenant": "t"}}] * 2


def test_one_client_draws_for_many_threads(peer: Peer) -> None:
    with Client(peer.url) as client, ThreadPoolExecutor(16) as pool:
        drawings = list(pool.map(lambda seed: client.draw(PROMPT, seed=seed, preview_every=4), range(32)))
    assert [drawing.pictures[0].seed for drawing in drawings] == list(range(32))


def test_only_options_that_were_given_are_sent(peer: Peer) -> None:
    options = DrawOptions(seed=None, size="96x64", steps=4, sampler="heun", request_id="r", timeout_s=9.0)
    draw_blocking(peer.url, PROMPT, **options)
    sent = {"prompt": PROMPT, "seed": None, "size": "96x64", "steps": 4, "sampler": "heun", "request_id": "r"}
    assert peer.documents == [sent]


def test_every_field_of_the_request_document_is_an_option() -> None:
    assert DrawOptions.__annotations__.keys() - {"timeout_s"} == DrawRequest.model_fields.keys() - {"prompt"}


def test_an_unknown_option_names_the_known_ones() -> None:
    with pytest.raises(TypeError, match=r"'step'; there are negative_prompt, size, steps, guidance"):
        build_draw(PROMPT, {"step": 3})  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        (PROMPT, {"guidance": float("nan")}, "guidance = nan cannot be sent: give a finite number"),
        (PROMPT, {"guidance": float("inf")}, "guidance = inf cannot be sent"),
        ("caf\udce9", {}, "not Unicode"),
        (PROMPT, {"seed": b"7"}, "plain JSON values"),
    ],
)
def test_what_json_cannot_carry_is_refused_by_the_call(
    prompt: str, options: dict[str, Any], words: str, peer: Peer
) -> None:
    with Client(peer.url) as client, pytest.raises(InvalidInput, match=words):
        client.stream_draw(prompt, **options)
    assert not peer.requests
