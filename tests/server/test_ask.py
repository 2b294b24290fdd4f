"""The client's doors to the real server: library, command, stand-alone examples, and curl give one answer."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
from PIL import Image

from proteus.client import Answer, AsyncClient, Client, Piece, ServerError, TimedOut
from proteus.client.request import Message
from proteus.launcher import Server

ROOT = Path(__file__).parents[2]
CHART = ROOT / "client/pictures/chart.png"
QUESTION = "Which bar is the tallest?"
DESCRIBE = "Describe the picture."  # the longest answer there is
VISUAL_TOKENS = 36
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.ports.grpc_url) as made:
        yield made


@pytest.fixture
def answer(client: Client) -> Answer:
    return client.ask(QUESTION, [CHART], max_tokens=32)


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, words)), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def sent_events(stdout: str) -> list[dict[str, str]]:
    return [json.loads(line[len("data: ") :]) for line in stdout.splitlines() if line.startswith("data: ")]


def proteus(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "proteus.cli", *words)


def test_an_answer_says_what_it_cost_and_where_its_time_went(answer: Answer) -> None:
    assert answer.text
    assert answer.usage.visual_tokens == VISUAL_TOKENS
    assert answer.usage.text_tokens > 0
    assert answer.usage.output_tokens == len(answer.token_ids)
    assert answer.finish_reason in ("stop", "length")
    assert {"ingress", "transfer", "prefill", "decode", "total"} < answer.stages_ms.keys()
    assert all(ms >= 0 for ms in answer.stages_ms.values())
    assert answer.ttft_ms is not None
    assert 0 < answer.ttft_ms <= answer.stages_ms["total"]
    assert answer.caches["encoder"]["lookups"] == len(answer.media) == 1
    assert answer.media[0]["visual_tokens"] == VISUAL_TOKENS


def test_the_streamed_pieces_are_the_answer(client: Client, answer: Answer) -> None:
    *pieces, last = client.stream(QUESTION, [CHART], max_tokens=32)
    assert isinstance(last, Answer)
    assert (last.text, last.token_ids, last.usage) == (answer.text, answer.token_ids, answer.usage)
    assert "".join(piece.text for piece in pieces) == answer.text
    assert tuple(id_ for piece in cast(list[Piece], pieces) for id_ in piece.token_ids) == answer.token_ids


@pytest.mark.parametrize("form", ["bytes", "image"])
def test_a_picture_may_be_a_path_bytes_or_a_pillow_image(form: str, client: Client, answer: Answer) -> None:
    picture = CHART.read_bytes() if form == "bytes" else Image.open(CHART)
    assert client.ask(QUESTION, picture, max_tokens=32).token_ids == answer.token_ids


def test_two_pictures_cost_twice_the_visual_tokens(client: Client) -> None:
    both = client.ask("Which picture has a red circle?", [CHART, CHART.with_name("shapes.png")], max_tokens=8)
    assert both.usage.visual_tokens == 2 * VISUAL_TOKENS


def test_a_question_without_a_picture_costs_no_visual_tokens(client: Client) -> None:
    assert client.ask("What colour is the sky?", max_tokens=4).usage.visual_tokens == 0


def test_a_sampled_answer_repeats_with_its_seed(client: Client) -> None:
    def sample(seed: int) -> tuple[int, ...]:
        return client.ask(DESCRIBE, [CHART], max_tokens=24, temperature=5.0, seed=seed).token_ids

    assert sample(7) == sample(7)
    assert len({sample(seed) for seed in range(4)}) > 1


def test_a_stop_string_is_cut_from_the_text(client: Client) -> None:
    text = client.ask(DESCRIBE, [CHART], max_tokens=24).text
    middle = text[len(text) // 2 :][:2]
    cut = client.ask(DESCRIBE, [CHART], max_tokens=24, stop=[middle])
    assert cut.text == text[: text.index(middle)]
    assert cut.finish_reason == "stop"


def test_the_async_client_gives_the_same_answer_to_every_one_of_many(server: Server, answer: Answer) -> None:
    async def ask_all() -> list[Answer]:
        async with AsyncClient(server.ports.grpc_url) as client:
            return await asyncio.gather(*(client.ask(QUESTION, [CHART], max_tokens=32) for _ in range(12)))

    assert {found.token_ids for found in asyncio.run(ask_all())} == {answer.token_ids}


def test_one_client_in_many_threads_gives_the_same_answer(client: Client, answer: Answer) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: client.ask(QUESTION, [CHART], max_tokens=32), range(16)))
    assert {one.token_ids for one in found} == {answer.token_ids}


def test_a_closed_stream_leaves_the_server_answering(client: Client, answer: Answer) -> None:
    for _ in range(10):
        stream = cast(Generator[Piece | Answer, None, None], client.stream(DESCRIBE, [CHART], max_tokens=200))
        next(stream)
        stream.close()
    assert client.ask(QUESTION, [CHART], max_tokens=32).token_ids == answer.token_ids


def test_a_timeout_is_said_and_the_server_keeps_answering(client: Client, answer: Answer) -> None:
    with pytest.raises(TimedOut):
        client.ask(DESCRIBE, [CHART], max_tokens=200, timeout_s=0.001)
    assert client.ask(QUESTION, [CHART], max_tokens=32).token_ids == answer.token_ids


def test_a_refusal_is_typed(client: Client) -> None:
    with pytest.raises(ServerError) as caught:
        client.ask(QUESTION, [b"this is no picture"])
    assert caught.value.code == "invalid_picture"
    with pytest.raises(ServerError) as caught:
        client.ask(QUESTION, [CHART], max_tokens=0)
    assert caught.value.code == "invalid_request"
    assert "max_tokens" in str(caught.value)
    assert caught.value.fix


def test_a_conversation_takes_its_pictures_in_order(client: Client) -> None:
    picture = {"type": "image"}
    messages: list[Message] = [
        {"role": "user", "content": [picture, {"type": "text", "text": QUESTION}]},
        {"role": "assistant", "content": "green"},
        {"role": "user", "content": [{"type": "text", "text": "And here?"}, picture]},
    ]
    told = client.chat(messages, [CHART, CHART.with_name("shapes.png")], max_tokens=8)
    assert told.usage.visual_tokens == 2 * VISUAL_TOKENS


def test_the_command_prints_the_answer_and_its_bill(server: Server, answer: Answer) -> None:
    done = proteus("ask", CHART, QUESTION, "--max-tokens", "32", "--url", server.ports.grpc_url)
    assert (done.returncode, done.stderr) == (0, "")
    text, bill = done.stdout.split("\n\ntokens  ")
    assert text == answer.text
    usage = answer.usage
    assert bill.startswith(f"{usage.text_tokens} text + {usage.visual_tokens} visual in, {usage.output_tokens} out")
    assert f"finish: {answer.finish_reason}" in bill


def test_the_command_prints_one_json_document(server: Server, answer: Answer) -> None:
    done = proteus("ask", CHART, QUESTION, "--max-tokens", "32", "--json", "--url", server.ports.grpc_url)
    document = json.loads(done.stdout)
    told = ["usage", "stages_ms", "ingress_ms", "ttft_ms", "inter_token_ms", "caches", "media", "pictures"]
    assert list(document) == ["text", "finish_reason", *told, "choices"]
    assert document["text"] == answer.text
    assert document["usage"]["visual_tokens"] == VISUAL_TOKENS


def test_the_command_says_a_refusal_in_one_line(server: Server) -> None:
    done = proteus("ask", ROOT / "Makefile", QUESTION, "--url", server.ports.grpc_url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("invalid_picture: ")
    assert done.stderr.count("\n") == 1


def test_the_stand_alone_example_gives_the_same_answer(server: Server, answer: Answer) -> None:
    done = run(sys.executable, "client/chat_grpc.py", CHART, QUESTION, "--url", server.ports.grpc_url)
    assert done.returncode == 0, done.stderr
    text, report = done.stdout.split("\n{", 1)
    assert text == answer.text
    assert json.loads("{" + report)["usage"]["visual_tokens"] == VISUAL_TOKENS


def test_the_stand_alone_async_example_answers_both_questions(server: Server, answer: Answer) -> None:
    done = run(sys.executable, "client/chat_grpc_async.py", CHART, QUESTION, QUESTION, "--url", server.ports.grpc_url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"{QUESTION} {answer.text}  {{") == 2


def test_curl_streams_the_same_answer(server: Server, answer: Answer) -> None:
    done = run("client/chat_http.sh", CHART, QUESTION, f"http://{server.ports.http_url}")
    assert done.returncode == 0, done.stderr
    events = sent_events(done.stdout)
    assert "".join(event["text"] for event in events) == answer.text
    assert json.loads(events[-1]["report"])["finish_reason"] == answer.finish_reason


@pytest.mark.parametrize("block", [block for block in BLOCKS if "proteus.client" in block])
def test_the_readmes_python_runs(block: str, server: Server) -> None:
    url = f'Client("{server.ports.grpc_url}")'
    (ROOT / "var").mkdir(exist_ok=True)  # `make demo` has made it
    done = run(sys.executable, "-c", block.replace('Client("127.0.0.1:8001")', url).replace("Client()", url))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_examples_import_nothing_of_ours() -> None:
    for example in (ROOT / "client").glob("*.py"):
        assert "proteus" not in [
            line.split()[1] for line in example.read_text().splitlines() if line.startswith("from ")
        ]
        assert os.access(example, os.X_OK)
