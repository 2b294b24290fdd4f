"""What the gateway's load asks, how it reads answers, and what it makes of them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perf.gateway_client import DIRECT, GATEWAY, WARM_UP, Job
from perf.gateway_http import Connections, HttpFailed, chat_body
from perf.gateway_page import LOST_COLUMNS, PAGE, added_rows, lost_rows, own_rows, plot
from perf.gateway_restart import Course
from perf.gateway_servers import changed
from perf.gateway_turns import KINDS, Turn, Turns, plan, quantile, records
from perf.records import Record
from perf.soak_page import with_table
from proteus.deployment import Deployment

JOB = Job(way=DIRECT, url="http://x", stream=True, seed=3, seconds=2.0, per_second=50.0)
WHOLE = b'{"choices": [{"message": {"content": "yes"}}], "proteus": {"stages_ms": {"total": 2.0}}}'
REFUSED = b'{"error": {"code": "queue_full"}}'
EVENTS = (
    b'data: {"choices": [{"delta": {"content": "ye"}}]}\n\ndata: {"choices": [{"del',
    b'ta": {"content": "s"}}]}\n\ndata: {"choices": [], "proteus": {"stages_ms": {"total": 2.0}}}\n\n',
)
DONE = b"data: [DONE]\n\n"


def test_both_ways_are_asked_the_same_at_the_same_moments_and_no_other_round_is() -> None:
    asks = JOB.asks()
    assert asks == replace(JOB, way=GATEWAY, url="http://y").asks()
    others = {ask.question for ask in replace(JOB, seed=4).asks()}
    assert not others & {ask.question for ask in asks}
    moments = [ask.at_s for ask in asks[WARM_UP:]]
    assert moments == sorted(moments)
    assert 60 < len(moments) < 140
    assert moments[-1] < JOB.seconds


def test_a_part_of_the_questions_shows_a_picture() -> None:
    shown = [ask.picture for ask in replace(JOB, seconds=0.5, picture_share=0.5).asks()]
    pictures = [one for one in shown if one is not None]
    assert 0 < len(pictures) < len(shown)
    assert len(set(pictures)) == len(pictures)


def test_who_was_first_is_second_in_the_next_round() -> None:
    ways = [way for kind, way, _ in plan(2) if kind is KINDS[0]]
    assert ways == [DIRECT, GATEWAY, GATEWAY, DIRECT]


@pytest.mark.parametrize(("part", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)])
def test_a_quantile_is_one_of_the_values(part: float, value: int) -> None:
    assert quantile(list(range(100, 0, -1)), part) == value


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


def answer(body: bytes, head: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 " + status + b"\r\nContent-Type: application/json\r\n" + head + b"\r\n\r\n" + body


STREAM = b"Transfer-Encoding: chunked"


@asynccontextmanager
async def peer(sent: bytes) -> AsyncIterator[Connections]:
    """Answers every request with these bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(re.findall(rb"Content-Length: (\d+)", head)[0]))
        writer.write(sent)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Connections(f"http://127.0.0.1:{port}") as connections:
        yield connections


def told(sent: bytes) -> list[Any]:
    async def scenario() -> list[Any]:
        async with peer(sent) as connections:
            return [item async for item in connections.ask(chat_body("Well?", None, 1, stream=False))]

    return asyncio.run(scenario())


def test_a_whole_answer_is_its_text_and_its_stages() -> None:
    assert told(answer(WHOLE, b"Content-Length: %d" % len(WHOLE))) == ["yes", {"total": 2.0}]


def test_events_are_read_wherever_they_are_cut() -> None:
    sent = answer(chunked(*EVENTS, DONE) + b"0\r\n\r\n", STREAM)
    assert told(sent) == ["ye", "s", {"total": 2.0}]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (answer(REFUSED, b"Content-Length: %d" % len(REFUSED), b"429 Too Many"), "^queue_full$"),
        (answer(chunked(b"data: " + REFUSED + b"\n\n"), STREAM), "queue_full in a stream"),
        (answer(chunked(*EVENTS), STREAM), "the connection ended"),
        (answer(chunked(*EVENTS) + b"0\r\n\r\n", STREAM), r"without \[DONE\]"),
        (b"", "the connection ended"),
    ],
    ids=["a status", "an error in a stream", "a stream that is cut", "a stream without its end", "nothing"],
)
def test_an_answer_that_is_none_is_lost(sent: bytes, why: str) -> None:
    with pytest.raises(HttpFailed, match=why):
        told(sent)


def one(text: str, ms: float, **more: Any) -> dict[str, Any]:
    stages = {"receive": 0.5, "gateway": 1.0, "decode": 5.0}
    return {"text": text, "first_ms": ms, "whole_ms": ms, "late_ms": 0.1, "error": "", "stages_ms": stages} | more


def turns(folder: Path) -> Turns:
    kept = Turns(folder / "kept.json", seconds=1.0, resume=True)
    for kind, way, round_ in plan(2):
        ms = 10.0 + round_ + 1.5 * (way == GATEWAY)
        kept.add(
            Turn(
                kind=kind.name,
                way=way,
                round=round_,
                answers=[one("yes", ms)] * 4,
                gateway_cpu_s=0.008,
                gateway_waited_s=0.004,
            )
        )
    return kept


def test_what_is_added_is_the_one_less_the_other_of_each_round(tmp_path: Path) -> None:
    found = {record.name: record for record in records(turns(tmp_path), "measured")}
    added = found["added/text_streamed/first_p50"]
    assert (added.value, added.baseline, added.runs) == (1.5, 10.5, [1.5, 1.5])
    assert (found["own/text_whole_p99"].value, found["cpu/text_whole"].value) == (1.5, 2.0)
    assert found["equal/mix_streamed"].value == found["equal/mix_streamed"].baseline == 8
    rows = list(added_rows(found))
    assert [row[:2] for row in rows][:2] == [("text, streamed", "first text"), ("text, streamed", "whole answer")]
    assert next(iter(own_rows(found)))[1:] == ("1.50", "1.50", "2.00", "1.00", "8 of 8")


def test_a_run_goes_on_with_the_turns_that_it_has(tmp_path: Path) -> None:
    turns(tmp_path)
    again = Turns(tmp_path / "kept.json", seconds=1.0, resume=True)
    assert all(again.has(*step) for step in plan(2))
    assert not again.has(KINDS[0], DIRECT, 2)
    assert len(again.of(KINDS[0], DIRECT)) == 2
    for resume, seconds in ((False, 1.0), (True, 2.0)):
        assert not Turns(tmp_path / "kept.json", seconds=seconds, resume=resume).has(*plan(1)[0])


def test_the_page_and_the_plot_tell_what_was_lost(tmp_path: Path) -> None:
    found = {
        f"{name}/{what}": Record(name=name, value=3, unit="", baseline=40, command="", note="none")
        for name in ("restart", "kill")
        for what in ("streamed", "whole", "retries")
    }
    page = with_table(PAGE.read_text(encoding="utf-8"), LOST_COLUMNS, lost_rows(found))
    assert page.count("| streamed | 40 | **3** | none |") == 2
    answers = [one("yes", 9.0, sent_s=1.0), one("", 5.0, sent_s=2.0, error="unavailable")]
    courses = [Course(name=name, events=[(1.5, "SIGTERM")], answers={True: answers}) for name in ("restart", "kill")]
    plot(turns(tmp_path), courses, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_changed_deployment_is_the_demos_but_for_these_keys(tmp_path: Path) -> None:
    changed_one = Deployment.load(changed(tmp_path / "one.toml", max_waiting="700"))
    assert changed_one.gateway is not None
    assert changed_one.gateway.queue.max_waiting == 700
    assert changed_one.gateway.metering is not None
    assert changed_one.gateway.metering.path == str(tmp_path / "one.jsonl")
    with pytest.raises(ValueError, match="no key"):
        changed(tmp_path / "two.toml", nothing="1")


def test_a_question_is_a_body_of_the_gateway() -> None:
    body = json.loads(chat_body("Well?", b"picture", 3, stream=True))
    assert body["stream_options"] == {"include_usage": True}
    assert body["max_tokens"] == body["min_tokens"] == 3
    assert [part["type"] for part in body["messages"][0]["content"]] == ["image_url", "text"]
