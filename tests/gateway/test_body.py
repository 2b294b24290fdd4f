"""What a body may be: strictly JSON in UTF-8, each key once, numbers that fit, bounded in depth and values."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus.deployment import Deployment
from proteus.errors import InvalidRequest
from proteus.gateway.http import body as reading
from proteus.gateway.http.body import LARGE_BYTES, MAX_PLAIN_BYTES, MAX_VALUES, load_json, parse_json
from tests.gateway.running import DEMO

DEPLOYMENT = Deployment.load(DEMO)
assert DEPLOYMENT.gateway is not None
LIMITS = DEPLOYMENT.gateway.http
DEEPEST = LIMITS.max_json_depth


def nested(depth: int, begin: bytes = b"[", end: bytes = b"]") -> bytes:
    return b'{"a":' + begin * (depth - 1) + end * (depth - 1) + b"}"


@pytest.mark.parametrize(
    ("body", "document"),
    [
        (b'{"a": 1, "b": [true, null, 1.5, "x"]}', {"a": 1, "b": [True, None, 1.5, "x"]}),
        (b'{"a": {"b": 1}, "b": 1}', {"a": {"b": 1}, "b": 1}),
        (rb'{"a\"": "[[[{{{,,,", "\\": ":::"}', {'a"': "[[[{{{,,,", "\\": ":::"}),
        (rb'{"\\\\\"": "\\"}', {'\\\\"': "\\"}),
        ('{"ä": "😀"}'.encode(), {"ä": "😀"}),
        (rb'{"a": "\ud83d\ude00"}', {"a": "😀"}),
        (b'{"a": "%s"}' % (b"," * 10 * MAX_VALUES), {"a": "," * 10 * MAX_VALUES}),
        (b'{"a": [%s1]}' % (b"1," * (MAX_VALUES - 2)), {"a": [1] * (MAX_VALUES - 1)}),
    ],
)
def test_a_document_is_what_it_says(body: bytes, document: dict[str, Any]) -> None:
    assert parse_json(body, LIMITS) == document


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"nul", "not JSON"),
        (b'{"a": 1} x', "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'{"a": "\xff"}', "not JSON"),
        (b'{"a": "\xc0\x80"}', "not JSON"),
        (rb'{"a": "\ud800"}', "not JSON"),
        (b'{"a": "\x00"}', "not JSON"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": -Infinity}', "not JSON"),
        (b'{"a": 01}', "not JSON"),
        ('{"a": 1}'.encode("utf-16"), "not JSON"),
        (b"[]", "a list"),
        (b'"a"', "a string"),
        (b"null", "a null"),
        (b"1", "a number"),
        (b"true", "a boolean"),
        (b'{"a": 1, "a": 1}', "a key stands twice"),
        (rb'{"a": 1, "\u0061": 1}', "a key stands twice"),
        (b'{"b": [{"a": 1, "a": 2}]}', "a key stands twice"),
        (b'{"a": 1e999}', "a number is too large"),
        (b'{"a": -9223372036854775808}', "a number is too large"),
        (b'{"a": %s}' % (b"9" * 400), "a number is too large"),
        (b'{"a": %s}' % (b"9" * 100_000), "not JSON"),
        (nested(DEEPEST + 1), "too many brackets"),
        (nested(DEEPEST + 1, b'{"a":', b"}").replace(b":}", b":1}"), "too many brackets"),
        (b"[" * 1_000_000, "too many values"),
        (b'{"a": [%s1]}' % (b"1," * MAX_VALUES), "too many values"),
        (b'{"a": [%s1]}' % (b"[]," * (MAX_VALUES // 2)), "too many values"),
        (b'"' * 1_000_000, "too many values"),
        (b'{"a": [%s1]}' % ((b"9" * 4_000 + b",") * 1_100), "too long numbers"),
        (b'{"a": 1%s}' % (b" " * MAX_PLAIN_BYTES), "too much space"),
    ],
)
def test_a_body_that_is_no_plain_document_is_refused(body: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        parse_json(body, LIMITS)


def test_as_many_brackets_as_may_be_are_read() -> None:
    assert parse_json(nested(DEEPEST), LIMITS)


def test_what_is_refused_costs_no_memory() -> None:
    body = b'{"a": [' + b"[]," * 3_000_000 + b"[]]}"
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            parse_json(body, LIMITS)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(body)
    finally:
        tracemalloc.stop()


def test_a_large_body_is_the_same_document() -> None:
    document = {"a": "x" * LARGE_BYTES, "b": [1, 2]}
    assert asyncio.run(load_json(json.dumps(document).encode(), LIMITS)) == document


@pytest.mark.parametrize(
    ("body", "elsewhere"),
    [
        (b'{"a": 1}', False),
        (b'{"a": "%s"}' % (b"A" * 200_000), False),
        (b'{"a": "%s"}' % (b"A" * 300_000), True),
        (nested(DEEPEST).replace(b"[]", b"[" + b"[]," * 8_000 + b"1]"), True),
        (b'"' * 200_000, True),
        (b'{"a": "%s"}' % (b"\\n" * 100_000), True),
    ],
)
def test_what_takes_long_to_read_is_read_in_a_thread(
    body: bytes, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "parse_json", lambda *_: {"thread": threading.get_ident()})
    assert (asyncio.run(load_json(body, LIMITS))["thread"] != threading.get_ident()) == elsewhere


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(-1e18, 1e18) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.booleans())
def test_every_small_document_is_read_as_pythons_own_reader_does(document: dict[str, Any], ascii_only: bool) -> None:
    body = json.dumps(document, ensure_ascii=ascii_only).encode()
    assert parse_json(body, LIMITS) == json.loads(body)


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7])
def test_a_document_is_the_same_however_it_is_cut(piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    document = {'"[': "\\", "\\\\": '\\"', "a": ['\\\\"{{,,', {'\\"b": ': [1, -2.5, "\n\\"]}], "c:": ":::"}
    monkeypatch.setattr(reading, "PIECE_BYTES", piece_bytes)
    assert parse_json(json.dumps(document).encode(), LIMITS) == document
    with pytest.raises(InvalidRequest, match="too many brackets"):
        parse_json(json.dumps({'\\"': nested(DEEPEST).decode(), "a": json.loads(nested(DEEPEST))}).encode(), LIMITS)


@given(st.text(alphabet='[]{},:"\\a1 ', max_size=24))
def test_what_python_cannot_read_is_refused(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        expected = None
    try:
        read = parse_json(text.encode(), LIMITS)
    except InvalidRequest:
        return
    assert read == expected


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"content-type": "text/plain"}, "no JSON"),
        ({"content-type": "multipart/form-data; boundary=a"}, "no JSON"),
        ({"content-type": "application/json; charset=latin-1"}, "not UTF-8"),
        ({"content-type": "application/json", "content-encoding": "gzip"}, "compressed"),
    ],
)
def test_another_kind_of_body_is_refused(http: httpx.Client, headers: dict[str, str], says: str) -> None:
    answer = http.post("/v1/chat/completions", content=b"{}", headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (415, "unsupported_media_type")
    assert says in error["message"]


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON ; charset=UTF-8", 'application/json;charset="utf8"']
)
def test_json_is_read_however_it_is_written(http: httpx.Client, kind: str) -> None:
    answer = http.post("/v1/chat/completions", content=b"[]", headers={"content-type": kind})
    assert answer.status_code == 400
