"""The models behind the door, asked directly: batches, stops, and what the door asks of them."""

from __future__ import annotations

import json
import os
import queue
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from proteus.client import Client
from proteus.contract import IMAGE_TOKENS
from proteus.deployment import Deployment
from proteus.language.prompt import PromptRenderer
from proteus.launcher import Server
from tests.preprocess.pictures import encode, noise

DEMO = Path(__file__).parents[2] / "deployments" / "demo.toml"
Triton = tritonclient.grpc.InferenceServerClient
KINDS = {"uint8": "UINT8", "int32": "INT32", "int64": "INT64", "float32": "FP32", "bool": "BOOL", "object": "BYTES"}
# So hot that every token is as likely, whatever the checkpoint; with this seed none of the first 900 ends the answer.
ANY_TOKEN = {"temperature": 1e6, "seed": 1}
PROMPT = np.array([1, 3, 20, 30, 40, 5], dtype=np.int32)


def tensor(name: str, array: npt.NDArray[Any]) -> InferInput:
    made = InferInput(name, list(array.shape), KINDS[array.dtype.name])
    made.set_data_from_numpy(array)
    return made


def octets(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8)


def image_tokens(
    client: InferenceServerClient, picture: bytes, scope_key: bytes, target_px: tuple[int, int] = (0, 0)
) -> dict[str, npt.NDArray[Any]]:
    """Every output, for the one picture."""
    inputs = [
        tensor("image_bytes", octets(picture)[None]),
        tensor("scope_key", octets(scope_key)[None]),
        tensor("target_px", np.array([target_px], dtype=np.int32)),
    ]
    result = client.infer("image_tokens", inputs)
    return {output.name: result.as_numpy(output.name)[0] for output in IMAGE_TOKENS.outputs}


class Stream:
    """Responses of the language model to requests of one connection."""

    def __init__(self, url: str) -> None:
        self.client = InferenceServerClient(url)
        self.arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client.start_stream(lambda result, error: self.arrived.put((result, error)))

    def send(self, **arrays: npt.NDArray[Any]) -> None:
        self.client.async_stream_infer("llm", [tensor(name, array) for name, array in arrays.items()])

    def next(self) -> Any:
        result, error = self.arrived.get(timeout=30)
        if error is not None:
            raise error
        return result

    def rest(self) -> list[Any]:
        events = [self.next()]
        while not any(events[-1].as_numpy(name) is not None for name in ("finish_reason", "report")):
            events.append(self.next())
        return events

    def close(self) -> None:
        self.client.stop_stream()
        self.client.close()


def ask_for(max_tokens: int, **fields: Any) -> npt.NDArray[np.uint8]:
    return octets(json.dumps({"max_tokens": max_tokens, **ANY_TOKEN, **fields}).encode())


def text_of(events: list[Any]) -> str:
    return b"".join(event.as_numpy("text").tobytes() for event in events).decode()


def executions(client: InferenceServerClient, model: str) -> int:
    stats = client.get_inference_statistics(model).model_stats[0]
    return int(stats.inference_count)


@pytest.fixture
def stream(server: Server) -> Any:
    made = Stream(server.ports.grpc_url)
    yield made
    made.close()


def test_picture_is_encoded_anew_however_often_image_tokens_is_asked(grpc_client: Triton) -> None:
    """What it gives is kept by the door, which compares whole keys; Triton keeps nothing."""
    picture = encode(noise(40, 30, 77))
    before = executions(grpc_client, "vision_encoder")
    first, second = (image_tokens(grpc_client, picture, os.urandom(32)) for _ in range(2))
    assert executions(grpc_client, "vision_encoder") - before == 2
    assert np.allclose(first["visual_tokens"], second["visual_tokens"], atol=1e-4)
    assert first["encoder_ns"][1] < second["encoder_ns"][0]


def test_bad_picture_of_a_batch_fails_alone(grpc_client: Triton) -> None:
    good = [encode(noise(40 + seed, 30, seed)) for seed in range(12)]
    alone = [image_tokens(grpc_client, picture, os.urandom(32))["visual_tokens"] for picture in good]

    def ask(index: int) -> Any:
        if index % 2 == 0:
            return image_tokens(grpc_client, good[index // 2], os.urandom(32))["visual_tokens"]
        with pytest.raises(InferenceServerException) as caught:
            image_tokens(grpc_client, good[index // 2][: 40 + index], os.urandom(32))
        return str(caught.value)

    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(ask, range(24)))
    for index, answer in enumerate(answers):
        if index % 2 == 0:
            assert np.allclose(answer, alone[index // 2], atol=1e-4)
        else:
            assert "invalid_picture: " in answer


def test_same_picture_in_many_questions_is_encoded_once(server: Server, grpc_client: Triton) -> None:
    picture = encode(noise(400, 300, int.from_bytes(os.urandom(3), "big")))
    before = executions(grpc_client, "image_preprocess")
    with Client(server.ports.grpc_url) as client, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: client.ask("What colour is it?", picture, max_tokens=4), range(16)))
    assert executions(grpc_client, "image_preprocess") - before == 1
    assert len({answer.token_ids for answer in answers}) == 1


def test_question_without_pictures_touches_no_picture_model(server: Server, grpc_client: Triton) -> None:
    before = executions(grpc_client, "image_preprocess")
    with Client(server.ports.grpc_url) as client:
        assert client.ask("What colour is it?", max_tokens=4).usage.visual_tokens == 0
    assert executions(grpc_client, "image_preprocess") == before


def test_finish_and_stage_times_come_with_the_last_event_only(stream: Stream) -> None:
    stream.send(input_ids=PROMPT, sampling=ask_for(12))
    events = stream.rest()
    assert sum(event.as_numpy("token_ids").size for event in events) == 12
    assert [event.as_numpy("finish_reason") is None for event in events] == [True] * (len(events) - 1) + [False]
    assert events[-1].as_numpy("finish_reason").tobytes() == b"length"
    assert (events[-1].as_numpy("stage_us") >= 0).all()
    assert events[-1].as_numpy("saved_us").tolist() == [0]


def test_logprobs_are_told_by_id_with_each_event_where_they_are_asked_for(stream: Stream) -> None:
    stream.send(input_ids=PROMPT, sampling=ask_for(6, logprobs=True, top_logprobs=2))
    told = [entry for event in stream.rest() for entry in json.loads(event.as_numpy("logprobs").tobytes())]
    stream.send(input_ids=PROMPT, sampling=ask_for(6))
    plain = stream.rest()
    assert [entry["token_id"] for entry in told] == [id_ for event in plain for id_ in event.as_numpy("token_ids")]
    assert all(entry["logprob"] <= entry["top"][0][1] <= 0 and len(entry["top"]) == 2 for entry in told)
    assert all(event.as_numpy("logprobs") is None for event in plain)


def test_a_prompt_is_reused_in_its_own_scope_only(stream: Stream) -> None:
    prompt = np.array([1, 3, *range(20, 90), 5], dtype=np.int32)

    def cached(cache_scope: str) -> int:
        stream.send(
            input_ids=prompt, sampling=ask_for(2), scheduling=octets(json.dumps({"cache_scope": cache_scope}).encode())
        )
        last = stream.rest()[-1]
        tokens, saved_us = (int(last.as_numpy(name)[0]) for name in ("cached_tokens", "saved_us"))
        assert (saved_us > 0) == (tokens > 0)
        return tokens

    assert [cached(scope) for scope in ("stages a", "stages b", "stages a")] == [0, 0, 64]


def test_a_request_whose_deadline_is_over_before_it_gets_a_slot_is_refused(server: Server, stream: Stream) -> None:
    slots = Deployment.load(DEMO).llm.slots
    holding = Stream(server.ports.grpc_url)
    keys = [os.urandom(16) for _ in range(slots)]
    for key in keys:
        holding.send(input_ids=PROMPT, sampling=ask_for(1000), request_key=octets(key))
    for _ in keys:
        holding.next()
    stream.send(input_ids=PROMPT, sampling=ask_for(2), scheduling=octets(b'{"deadline_ms": 1}'))
    with pytest.raises(InferenceServerException, match="deadline_exceeded"):
        stream.next()
    for key in keys:
        stream.send(request_key=octets(key), stop=np.array([True]))
    holding.close()


def test_stop_request_ends_the_request_it_names(server: Server, stream: Stream) -> None:
    key = os.urandom(16)
    stream.send(input_ids=PROMPT, sampling=ask_for(900), request_key=octets(key))
    first = stream.next()
    assert first.as_numpy("finish_reason") is None
    stopper = Stream(server.ports.grpc_url)
    stopper.send(request_key=octets(key), stop=np.array([True]))
    events = [first, *stream.rest()]
    stopper.close()
    assert events[-1].as_numpy("finish_reason").tobytes() == b"cancelled"
    assert sum(event.as_numpy("token_ids").size for event in events) < 900


def test_client_that_leaves_the_language_model_frees_its_slots(server: Server, stream: Stream) -> None:
    slots = Deployment.load(DEMO).llm.slots
    for _ in range(slots):
        leaver = Stream(server.ports.grpc_url)
        leaver.send(input_ids=PROMPT, sampling=ask_for(1000))
        leaver.next()
        leaver.client.stop_stream(cancel_requests=True)
        leaver.client.close()
    stream.send(input_ids=PROMPT, sampling=ask_for(2))
    assert stream.rest()[-1].as_numpy("finish_reason").tobytes() == b"length"


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, ["invalid_request: input_ids is missing"]),
        ({"stop": np.array([True])}, ["invalid_request: request_key is missing"]),
        ({"input_ids": PROMPT, "sampling": octets(b"{")}, ["invalid_request: sampling is not JSON"]),
        ({"input_ids": PROMPT, "sampling": ask_for(0)}, ["sampling.max_tokens = 0"]),
        ({"input_ids": PROMPT, "visual_tokens": np.zeros((3, 192), np.float32)}, ["visual_tokens has shape [3, 192]"]),
        ({"input_ids": PROMPT, "visual_spans": np.array([[2, 2]], np.int32)}, ["visual_spans", "placeholder"]),
        ({"input_ids": np.full(2000, 9, np.int32)}, ["prompt_too_long", "2,000 tokens"]),
        (
            {"input_ids": PROMPT, "media_keys": np.zeros((1, 32), np.uint8)},
            ["media_keys has 1 keys"],
        ),
        ({"input_ids": PROMPT, "scheduling": octets(b"[]")}, ["scheduling = []"]),
        ({"input_ids": PROMPT, "scheduling": octets(b'{"latency_class": "first"}')}, ["scheduling.latency_class"]),
        ({"input_ids": PROMPT, "sampling": ask_for(4, logit_bias={"512": 1})}, ["logit_bias", "512"]),
    ],
)
def test_language_model_refuses_what_does_not_fit(
    stream: Stream, arrays: dict[str, npt.NDArray[Any]], words: list[str]
) -> None:
    stream.send(**arrays)
    with pytest.raises(InferenceServerException) as caught:
        stream.next()
    for word in [*words, "fix: "]:
        assert word in str(caught.value)


def test_language_model_answers_the_prompt_of_the_door_alike(server: Server, stream: Stream) -> None:
    from proteus.language.messages import Message, TextPart

    with Client(server.ports.grpc_url) as client:
        answer = client.ask("What colour is it?", max_tokens=12)
    renderer = PromptRenderer.from_checkpoint(Deployment.load(DEMO).checkpoint_path)
    prompt = renderer.render([Message("user", (TextPart("What colour is it?"),))], [])
    stream.send(input_ids=prompt.input_ids, sampling=octets(b'{"max_tokens": 12}'))
    events = stream.rest()
    assert text_of(events) == answer.text
    assert tuple(np.concatenate([event.as_numpy("token_ids") for event in events])) == answer.token_ids


def test_stream_of_a_model_that_died_ends_with_an_error_even_when_nobody_restarts_it(tmp_path: Path) -> None:
    with Server(DEMO, log=tmp_path / "server.log", watch=False) as alone:
        door = Stream(alone.ports.grpc_url)
        document = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 900, **ANY_TOKEN}
        request = np.array([json.dumps(document).encode()], dtype=np.object_)
        door.client.async_stream_infer("chat", [tensor("request", request)])
        door.next()
        os.kill(alone.stub_pids()["llm"][0], signal.SIGKILL)
        died_s = time.monotonic()
        with pytest.raises(InferenceServerException, match="(?i)unavailable"):
            door.rest()
        assert time.monotonic() - died_s < 10
        door.close()
