from __future__ import annotations

import json

import pytest

from proteus.errors import InvalidRequest
from proteus.language.sampling import Sampling


def test_every_field_is_read() -> None:
    document = (
        b'{"max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 11, "stop": ["a", "\\u00e9"],'
        b' "stop_token_ids": [5]}'
    )
    assert Sampling.from_json(document) == Sampling(
        max_tokens=3, temperature=0.5, top_p=0.9, top_k=7, seed=11, stop=("a", "é"), stop_token_ids=(5,)
    )


def test_what_is_left_out_is_greedy() -> None:
    assert Sampling.from_json(b"{}") == Sampling()
    assert Sampling.from_json(b'{"temperature": 0, "seed": null}') == Sampling()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"max_tokens": 0}, r"sampling\.max_tokens = 0; limit: .*greater than or equal to 1"),
        ({"max_tokens": 1.5}, r"sampling\.max_tokens = 1\.5"),
        ({"max_tokens": True}, r"sampling\.max_tokens = true"),
        ({"temperature": -0.1}, r"sampling\.temperature = -0\.1"),
        ({"temperature": float("inf")}, r"sampling\.temperature = Infinity"),
        ({"temperature": float("nan")}, r"sampling\.temperature = NaN"),
        ({"top_p": 0}, r"sampling\.top_p = 0"),
        ({"top_p": 1.01}, r"sampling\.top_p = 1\.01; limit: .*less than or equal to 1"),
        ({"top_k": -1}, r"sampling\.top_k = -1"),
        ({"seed": -1}, r"sampling\.seed = -1"),
        ({"seed": 2**63}, r"sampling\.seed = 9223372036854775808"),
        ({"stop": "word"}, r"sampling\.stop = \"word\""),
        ({"stop": ["ok", ""]}, r"sampling\.stop\.1 = \"\""),
        ({"stop_token_ids": [-5]}, r"sampling\.stop_token_ids\.0 = -5"),
        ({"top_q": 1}, r"unknown field sampling\.top_q; limit: known are max_tokens, min_tokens"),
        ([], r"sampling = \[\]"),
    ],
)
def test_wrong_values_are_named_with_their_limit(fields: object, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        Sampling.from_json(json.dumps(fields).encode())


@pytest.mark.parametrize("document", [b"", b"{", b"\xff\xfe", b'{"stop": ["\xff"]}'])
def test_what_is_not_json_is_refused(document: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not JSON"):
        Sampling.from_json(document)


def test_a_long_wrong_value_is_not_repeated_in_full() -> None:
    with pytest.raises(InvalidRequest) as caught:
        Sampling.from_json(json.dumps({"max_tokens": "9" * 5000}).encode())
    assert len(str(caught.value)) < 300
