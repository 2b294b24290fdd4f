"""Drawing on the real server, with random weights: what it draws is noise, and must always be the same noise."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import np_to_triton_dtype

from proteus.client import Client, ConnectionFailed, Drawing, Preview, ServerError
from proteus.launcher import Server
from tests.server.figures import metrics, until

PROMPT = "a red circle at the top left"
# Requests that have nothing in common but the prompt.
COMPANY: tuple[dict[str, Any], ...] = (
    {"steps": 4, "sampler": "euler", "guidance": 1.0},
    {"steps": 20, "sampler": "ddim", "guidance": 7.5, "n": 2},
    {"steps": 9, "sampler": "heun", "guidance": 2.0, "negative_prompt": "green"},
    {"steps": 50, "sampler": "dpmpp_2m", "guidance": 3.0},
    {"steps": 7, "sampler": "euler", "guidance": 3.0, "size": "48x32"},
    {"steps": 12, "sampler": "euler", "guidance": 3.0, "size": "32x48", "preview_every": 1},
)
LONG: dict[str, Any] = {"steps": 100, "n": 8, "size": "48x48"}


@pytest.fixture
def server(draw_server: Server) -> Server:
    return draw_server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.ports.grpc_url) as client:
        yield client


def drawn(server: Server, **options: Any) -> Drawing:
    with Client(server.ports.grpc_url) as client:
        return client.draw(PROMPT, **options)


def files(drawing: Drawing) -> list[bytes]:
    return [picture.data for picture in drawing.pictures]


def nobody_draws(now: Any) -> bool:
    held = [value for name, value in now.items() if name.startswith(("proteus_draw_reserved{", "proteus_draw_live"))]
    return bool(held) and not any(held)


def test_the_same_seed_gives_the_same_file_alone_and_in_company(server: Server) -> None:
    alone = [files(drawn(server, seed=seed, **options)) for seed, options in enumerate(COMPANY)]
    with ThreadPoolExecutor(len(COMPANY)) as threads:
        together = threads.map(lambda given: drawn(server, seed=given[0], **given[1]), enumerate(COMPANY))
        assert [files(drawing) for drawing in together] == alone
    assert len({data for pictures in alone for data in pictures}) == len(COMPANY) + 1


def test_any_picture_of_a_request_can_be_had_by_itself(server: Server) -> None:
    whole = drawn(server, seed=7, n=3, steps=5)
    alone = [drawn(server, seed=7, first_index=index, steps=5) for index in range(3)]
    assert [files(drawing) for drawing in alone] == [[data] for data in files(whole)]
    assert [picture.settings["image_index"] for picture in whole.pictures] == [0, 1, 2]


def test_the_seed_that_the_server_chose_draws_the_picture_again(server: Server) -> None:
    (picture,) = drawn(server, steps=4).pictures
    assert picture.data == drawn(server, steps=4, seed=picture.seed).pictures[0].data


@pytest.mark.parametrize("by", ["linear", "decoder"])
def test_previews_come_in_the_order_of_their_steps_before_the_picture(client: Client, by: str) -> None:
    *previews, picture, drawing = client.stream_draw(PROMPT, steps=100, preview_every=1, preview_by=by, seed=1)
    assert previews and all(isinstance(preview, Preview) for preview in previews)
    steps = [preview.step for preview in previews if isinstance(preview, Preview)]
    assert all(one < other for one, other in pairwise(steps))
    assert isinstance(drawing, Drawing) and drawing.first_preview_ms is not None
    assert picture == drawing.pictures[0]
    assert files(drawing) == files(client.draw(PROMPT, steps=100, seed=1)), "previews change nothing"


def test_report_names_what_it_took(client: Client) -> None:
    drawing = client.draw(PROMPT, steps=6, sampler="heun", n=2)
    assert (drawing.usage.evaluations, drawing.usage.branches) == (2 * 2 * 11, 2)
    assert drawing.usage.token_passes == drawing.usage.latent_tokens * drawing.usage.evaluations
    parts = {"parse", "plan", "admission", "condition", "queue", "denoise", "decode", "encode", "transfer", "total"}
    assert set(drawing.stages_ms) == parts


def test_text_that_was_encoded_before_comes_from_the_cache(server: Server) -> None:
    drawn(server, steps=1)
    with triton.InferenceServerClient(server.ports.grpc_url) as asked:
        before, after = [], []
        for told in (before, after):
            (stats,) = asked.get_inference_statistics("text_encoder").model_stats
            told += [stats.inference_stats.cache_hit.count, stats.inference_stats.cache_miss.count]
            drawn(server, steps=1)
    assert (after[0] - before[0], after[1] - before[1]) == (2, 0), "prompt and empty negative prompt"


def test_a_client_that_leaves_stops_its_pictures_between_steps(server: Server, client: Client) -> None:
    assert until(server, nobody_draws)
    before = metrics(server)
    stream = client.stream_draw(PROMPT, preview_every=1, **LONG)
    next(stream)
    stream.close()
    assert until(server, nobody_draws)
    cancelled, wasted = (
        'proteus_draw_ended_total{outcome="cancelled"}',
        'proteus_draw_wasted_rows_total{cancel="before"}',
    )
    assert until(server, lambda now: now.get(cancelled, 0) - before.get(cancelled, 0) == LONG["n"])
    assert 0 < metrics(server)[wasted] - before.get(wasted, 0) < 2 * LONG["n"] * LONG["steps"]


def test_a_request_is_stopped_by_its_id_and_says_so(server: Server, client: Client) -> None:
    with ThreadPoolExecutor(1) as threads:
        drawing = threads.submit(drawn, server, request_id="one", **LONG)
        while not client.stop("one", model="draw"):
            time.sleep(0.05)
        assert drawing.result(60).finish_reason == "cancelled"
    assert client.stop("one", model="draw") == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 0}, "steps = 0; limit: 1 to [draw] max_steps"),
        ({"steps": 1000}, "steps = 1,000; limit: 1 to [draw] max_steps"),
        ({"size": "33x32"}, 'size = "33x32"; limit: sides are multiples of [draw] side_multiple_px'),
        ({"size": "1024x32"}, "limit: [draw] max_side_px"),
        ({"n": 9}, "n = 9; limit: 1 to [draw] max_images = 8"),
        ({"sampler": "plms"}, 'sampler = "plms"'),
    ],
)
def test_what_cannot_be_drawn_is_refused_at_the_door(client: Client, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ServerError) as caught:
        client.draw(PROMPT, **options)
    assert words in str(caught.value)


def test_denoiser_answers_who_asks_it_without_the_door(server: Server) -> None:
    with triton.InferenceServerClient(server.ports.grpc_url) as asked:
        document = {"width_px": 64, "height_px": 96, "steps": 3, "guidance": 1.0, "sampler": "ddim", "seed": 5}
        first, second = (_latents(asked, document) for _ in range(2))
    assert first.shape[1] / first.shape[2] == 96 / 64
    assert np.isfinite(first).all() and np.array_equal(first, second)


def test_whoever_leaves_the_denoiser_without_a_word_stops_it(server: Server) -> None:
    """No preview was asked for, so no event tells that nobody listens."""
    cancelled = 'proteus_draw_ended_total{outcome="cancelled"}'
    with triton.InferenceServerClient(server.ports.grpc_url) as asked:
        document = {"width_px": 96, "height_px": 96, "steps": 500, "guidance": 1.0, "sampler": "euler", "seed": 5}
        asked.start_stream(lambda result, error: None)
        asked.async_stream_infer("denoiser", _inputs(asked, document))
        assert until(server, lambda now: now["proteus_draw_live"] == 1)
        before = metrics(server).get(cancelled, 0)
        asked.stop_stream(cancel_requests=True)
    assert until(server, lambda now: now.get(cancelled, 0) == before + 1)


def test_pictures_are_the_same_while_others_leave(server: Server) -> None:
    choices = random.Random(5)
    wanted = [
        {"seed": seed, "steps": choices.randint(1, 12), "guidance": choices.choice((1.0, 4.0))} for seed in range(8)
    ]
    alone = [files(drawn(server, **options)) for options in wanted]

    def leave(after_s: float) -> None:
        with Client(server.ports.grpc_url) as client, suppress(ServerError, ConnectionFailed):
            stream = client.stream_draw(PROMPT, preview_every=1, steps=choices.randint(5, 100), n=2)
            next(stream)
            time.sleep(after_s)
            stream.close()

    with ThreadPoolExecutor(16) as threads:
        leaving = [threads.submit(leave, choices.random() / 2) for _ in range(24)]
        together = list(threads.map(lambda options: files(drawn(server, **options)), wanted))
        assert [one.result(60) for one in leaving] == [None] * len(leaving)
    assert together == alone
    assert until(server, nobody_draws)


def _latents(asked: Any, document: dict[str, Any]) -> np.ndarray:
    answers: list[Any] = []
    asked.start_stream(lambda result, error: answers.append(error or result))
    asked.async_stream_infer("denoiser", _inputs(asked, document))
    asked.stop_stream()
    (last,) = answers
    assert json.loads(last.as_numpy("end").tobytes())["reason"] == "done"
    assert last.as_numpy("step").tolist() == [document["steps"]]
    latents: np.ndarray = last.as_numpy("latents")
    return latents


def _inputs(asked: Any, document: dict[str, Any]) -> list[Any]:
    config = asked.get_model_config("denoiser", as_json=True)["config"]
    (dims,) = [tensor["dims"] for tensor in config["input"] if tensor["name"] == "text_states"]
    arrays = {
        "text_states": np.zeros([int(dim) for dim in dims], dtype=np.float32),
        "settings": np.frombuffer(json.dumps(document).encode(), dtype=np.uint8),
    }
    inputs = []
    for name, array in arrays.items():
        inputs.append(triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
        inputs[-1].set_data_from_numpy(array)
    return inputs
