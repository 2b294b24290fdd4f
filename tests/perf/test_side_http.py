"""perf.side.chat_http: a stream of events is read as vLLM and transformers write it; perf.side.cpu counts a process."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from perf.side.asks import TOKENS, Ask
from perf.side.chat_http import Endpoint, ServerRefused
from perf.side.cpu import cpu_s
from perf.side.turns import Answered

ASK = Ask(b"picture", "What colour is the circle?")
USAGE = {"choices": [], "usage": {"completion_tokens": 3}}


def event(content: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {} if content is None else {"content": content}, **more}]}


VLLM = [event(""), event("red", token_ids=[335]), event("", token_ids=[6, 7]), USAGE]
TRANSFORMERS = [event(), event("red"), event(" square"), {**event(), "usage": {"completion_tokens": 3}}]


def asked(
    events: list[dict[str, Any]], status: str = "200 OK", see: Callable[[bytes], None] = lambda _: None
) -> Answered:
    """What the client made of a server that answers with these events, in chunks."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.splitlines() if line.startswith(b"Content-Length"))
        see(await reader.readexactly(length))
        writer.write(f"HTTP/1.1 {status}\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        for text in (*(json.dumps(one) for one in events), "[DONE]"):
            data = f"data: {text}\n\n".encode()
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        writer.close()

    async def both() -> Answered:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            endpoint = Endpoint(host="127.0.0.1", port=port, model="demo", options={"ignore_eos": True})
            return await endpoint.answer(ASK)

    return asyncio.run(both())


@pytest.mark.parametrize(("events", "text", "ids"), [(VLLM, "red", (335, 6, 7)), (TRANSFORMERS, "red square", None)])
def test_the_stream_is_put_together(events: list[dict[str, Any]], text: str, ids: tuple[int, ...] | None) -> None:
    answer = asked(events)
    assert (answer.text, answer.ids, answer.num_tokens) == (text, ids, 3)
    assert answer.ttft_s > 0


def test_the_document_has_picture_question_length_and_what_this_server_alone_takes() -> None:
    seen: list[bytes] = []
    asked(VLLM, see=seen.append)
    document = json.loads(seen[0])
    picture, question = document["messages"][0]["content"]
    assert base64.b64decode(picture["image_url"]["url"].split(",")[1]) == ASK.picture
    assert question["text"] == ASK.question
    assert (document["max_tokens"], document["temperature"], document["ignore_eos"]) == (TOKENS, 0, True)


def test_a_refusal_is_told() -> None:
    with pytest.raises(ServerRefused, match="422"):
        asked(VLLM, status="422 Unprocessable Content")


def test_cpu_time_is_that_of_a_process_and_all_below_it() -> None:
    burn = "import time; t = time.process_time()\nwhile time.process_time() - t < 0.3: pass\nprint(flush=True); input()"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    with subprocess.Popen([sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        time.sleep(0.05)  # until the kernel has counted it
        spent_s = cpu_s(parent.pid)
        parent.communicate(b"\n")
    assert spent_s >= 0.25
    assert cpu_s(os.getpid()) > 0
