from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus.errors import InvalidMedia, MediaTooLarge
from proteus.media.source import from_text

DATA = bytes(range(256)) * 3 + b"\xfb\xff"  # + and / or - and _ are among its characters
STANDARD, URL_SAFE = base64.b64encode(DATA).decode(), base64.urlsafe_b64encode(DATA).decode()
WAYS = {
    "plain": STANDARD,
    "lines of 76": base64.encodebytes(DATA).decode(),
    "carriage returns": base64.encodebytes(DATA).decode().replace("\n", "\r\n"),
    "blanks around": f"  \n{STANDARD}\t ",
    "url-safe": URL_SAFE,
    "no padding": STANDARD.rstrip("="),
    "url-safe without padding": URL_SAFE.rstrip("="),
    "data URI": f"data:image/png;base64,{STANDARD}",
    "data URI of a wrong type": f"data:text/html;base64,{STANDARD}",
    "data URI of no type": f"data:;base64,{STANDARD}",
    "data URI with a parameter": f"data:image/png;charset=utf-8;base64,{STANDARD}",
    "shouted": f"DATA:IMAGE/PNG;BASE64,{STANDARD}",
    "data URI with line breaks": "data:image/png;base64,\n" + base64.encodebytes(DATA).decode(),
    "data URI url-safe": f"data:image/png;base64,{URL_SAFE.rstrip('=')}",
}
REFUSED = {
    "": "empty",
    " \n": "empty",
    "====": "empty",
    "data:image/png;base64,": "empty",
    "%%%": "character 1 is not base64",
    "AAAA*AAA": "character 5 is not base64",
    "é": "character 1 is not base64",
    "AAAA\x00": "character 5 is not base64",
    "A": "cut off",
    "AAAAA": "cut off",
    "AA==AA==": "padding where it does not end",
    "AAA===": "padding where it does not end",
    "+A-A": "mixes both alphabets",
    "data:image/png;base64": "no comma",
    "data:image/svg+xml,%3Csvg%3E": "not base64",
    "data:image/png;base64x,AAAA": "not base64",
    f"data:image/png;base64,data:image/png;base64,{STANDARD}": "prefix twice",
}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_bytes_come_out_however_they_are_written(way: str) -> None:
    assert from_text(WAYS[way], max_bytes=len(DATA)) == DATA


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_base64_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(InvalidMedia, match=REFUSED[text]) as caught:
        from_text(text, max_bytes=10_000)
    assert "fix: " in str(caught.value)


def test_size_is_known_before_decoding_and_exact() -> None:
    assert from_text(STANDARD, max_bytes=len(DATA)) == DATA
    with pytest.raises(MediaTooLarge, match=rf"{len(DATA):,} bytes; limit: \[image\] max_bytes = {len(DATA) - 1}"):
        from_text(STANDARD, max_bytes=len(DATA) - 1)
    with pytest.raises(MediaTooLarge):
        from_text("*" * 10_000, max_bytes=100)


@given(st.binary(min_size=1, max_size=200), st.sampled_from(["\n", " ", "\t", ""]), st.integers(1, 90))
def test_round_trip_with_blanks_anywhere(data: bytes, blank: str, width: int) -> None:
    text = base64.b64encode(data).decode()
    written = blank.join(text[start : start + width] for start in range(0, len(text), width))
    assert from_text(written, max_bytes=len(data)) == data


@given(st.text(max_size=80))
def test_any_text_is_bytes_or_our_error(text: str) -> None:
    try:
        assert len(from_text(text, max_bytes=30)) <= 30
    except (InvalidMedia, MediaTooLarge):
        pass
