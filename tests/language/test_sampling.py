from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from proteus.errors import InvalidRequest
from proteus.language.sampling import Sampling, check_vocabulary


def test_every_field_is_read() -> None:
    document = (
        b'{"max_tokens": 3, "min_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 11,'
        b' "frequency_penalty": -2, "presence_penalty": 2, "repetition_penalty": 1.1,'
        b' "logit_bias": {"50": -100, "0": 1.5},'
        b' "logprobs": true, "top_logprobs": 20, "stop": ["a", "\\u00e9"], "stop_token_ids": [5]}'
    )
    sampling = Sampling.from_json(document)
    assert sampling == Sampling(
        max_tokens=3,
        min_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        frequency_penalty=-2.0,
        presence_penalty=2.0,
        repetition_penalty=1.1,
        logit_bias={0: 1.5, 50: -100.0},
        logprobs=True,
        top_logprobs=20,
        seed=11,
        stop=("a", "é"),
        stop_token_ids=(5,),
    )
    assert set(json.loads(document)) == {field.name for field in dataclasses.fields(Sampling)}


def test_a_sampling_can_be_hashed_and_its_bias_not_be_changed() -> None:
    given = {7: 1.0, 3: -2.0}
    one, other = Sampling(logit_bias=given), Sampling(logit_bias={3: -2.0, 7: 1.0})
    given[7] = 50.0
    assert one == other and hash(one) == hash(other)
    assert dict(one.logit_bias) == {3: -2.0, 7: 1.0} and len(one.logit_bias) == 2
    assert one != Sampling(logit_bias=given) and Sampling().logit_bias == {}
    assert repr(one.logit_bias) == "LogitBias({3: -2.0, 7: 1.0})"
    with pytest.raises(TypeError):
        one.logit_bias[3] = 0.0  # type: ignore[index]


@pytest.mark.parametrize(
    ("seed", "seeds"),
    [
        (0, [0, 6511062686839009275, 6917794958294006753, 8447826705367128365]),
        (7, [7, 5439870822809265863, 3510623959570644617, 656845663159210700]),
        (2**63 - 1, [2**63 - 1, 9055206178870526426, 5641989663488777077, 5130290334694173836]),
    ],
)
def test_each_of_n_answers_has_the_seed_it_always_had(seed: int, seeds: list[int]) -> None:
    sampling = Sampling(seed=seed, temperature=0.5, logit_bias={1: 2.0})
    assert [sampling.for_choice(index).seed for index in (0, 1, 2, 127)] == seeds
    assert sampling.for_choice(2) == dataclasses.replace(sampling, seed=seeds[2])


def test_n_answers_have_n_seeds_and_none_without_a_seed() -> None:
    assert len({Sampling(seed=seed).for_choice(index).seed for seed in range(50) for index in range(128)}) == 50 * 128
    assert Sampling().for_choice(3) == Sampling()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"logit_bias": {0: 1.0, 99: 1.0}, "stop_token_ids": (0, 99)}, None),
        ({"logit_bias": {5: 1.0, 100: 1.0}}, r"sampling\.logit_bias names the id 100; limit: 0 to 99"),
        ({"stop_token_ids": (100,)}, r"sampling\.stop_token_ids names the id 100; limit: 0 to 99"),
        ({"stop_token_ids": (-1,)}, "names the id -1"),
        ({"stop_token_ids": (10**4000,)}, "names the id 1000"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(fields: dict[str, Any], text: str | None) -> None:
    sampling = Sampling(**fields)
    if text is None:
        check_vocabulary(sampling, 100)
        return
    with pytest.raises(InvalidRequest, match=text) as caught:
        check_vocabulary(sampling, 100)
    assert len(str(caught.value)) < 300


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
        ({"stop": ["ok"] * 65}, r"sampling\.stop = \[\"ok\".*…; limit: .*at most 64 items"),
        ({"stop_token_ids": [-5]}, r"sampling\.stop_token_ids\.0 = -5"),
        ({"min_tokens": -1}, r"sampling\.min_tokens = -1; limit: .*greater than or equal to 0"),
        ({"min_tokens": 4, "max_tokens": 3}, r"sampling\.min_tokens = 4; limit: max_tokens = 3"),
        ({"min_tokens": 17}, r"sampling\.min_tokens = 17; limit: max_tokens = 16"),
        ({"min_tokens": 10**4000}, r"sampling\.min_tokens = 1000+…"),
        ({"temperature": 10**400}, r"sampling\.temperature = "),
        ({"top_p": float("nan")}, r"sampling\.top_p = NaN"),
        ({"min_p": -0.1}, r"sampling\.min_p = -0\.1"),
        ({"min_p": 1.1}, r"sampling\.min_p = 1\.1; limit: .*less than or equal to 1"),
        ({"min_p": float("nan")}, r"sampling\.min_p = NaN"),
        ({"frequency_penalty": 2.01}, r"sampling\.frequency_penalty = 2\.01; limit: .*less than or equal to 2"),
        ({"presence_penalty": -2.01}, r"sampling\.presence_penalty = -2\.01; limit: .*greater than or equal to -2"),
        ({"repetition_penalty": 0}, r"sampling\.repetition_penalty = 0; limit: .*greater than 0"),
        ({"repetition_penalty": float("inf")}, r"sampling\.repetition_penalty = Infinity"),
        ({"logit_bias": {"5": 100.5}}, r"sampling\.logit_bias\.5 = 100\.5; limit: .*less than or equal to 100"),
        ({"logit_bias": {"5": -101}}, r"sampling\.logit_bias\.5 = -101; limit: .*greater than or equal to -100"),
        ({"logit_bias": {"5": float("nan")}}, r"sampling\.logit_bias\.5 = NaN"),
        ({"logit_bias": {"5": True}}, r"sampling\.logit_bias\.5 = true"),
        ({"logit_bias": {"red": 1}}, r"sampling\.logit_bias names \"red\"; limit: a token id"),
        ({"logit_bias": {"05": 1}}, r"sampling\.logit_bias names \"05\""),
        ({"logit_bias": {"-5": 1}}, r"sampling\.logit_bias names \"-5\""),
        ({"logit_bias": {"5\n": 1}}, r"sampling\.logit_bias names \"5\\n\""),
        ({"logit_bias": {"٥": 1}}, r"sampling\.logit_bias names"),
        ({"logit_bias": {"9" * 5000: 1}}, r"sampling\.logit_bias names \"99"),
        ({"logit_bias": {"9" * 5: "x" * 5000}}, r"sampling\.logit_bias\.99999 = \"xx"),
        ({"logit_bias": [[5, 1]]}, r"sampling\.logit_bias = \[\[5, 1\]\]"),
        ({"logit_bias": dict.fromkeys(map(str, range(1025)), 1)}, r"sampling\.logit_bias = .*limit: .* 1024 items"),
        ({"logprobs": 1}, r"sampling\.logprobs = 1"),
        ({"top_logprobs": 21, "logprobs": True}, r"sampling\.top_logprobs = 21; limit: .*less than or equal to 20"),
        ({"top_logprobs": -1}, r"sampling\.top_logprobs = -1"),
        ({"top_logprobs": 1}, r"sampling\.top_logprobs = 1; limit: 0 without logprobs"),
        ({"[key]": 1}, r"unknown field sampling\.\[key\]"),
        ({"a\nb": 1}, r"unknown field sampling\.a\\nb; limit"),
        ({"b" * 5000: 1}, r"unknown field sampling\.bb"),
        ({"logit_bias": dict.fromkeys(map(str, range(1000)), "x")}, r"sampling has 1,000 mistakes"),
        ({"top_q": 1}, r"unknown field sampling\.top_q; limit: known are max_tokens, min_tokens"),
        ([], r"sampling = \[\]"),
    ],
)
def test_wrong_values_are_named_with_their_limit(fields: object, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text) as caught:
        Sampling.from_json(json.dumps(fields).encode())
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


def test_1024_biases_are_taken() -> None:
    fields = {"logit_bias": dict.fromkeys(map(str, range(1024)), -1)}
    assert len(Sampling.from_json(json.dumps(fields).encode()).logit_bias) == 1024


@pytest.mark.parametrize("document", [b"", b"{", b"\xff\xfe", b'{"stop": ["\xff"]}'])
def test_what_is_not_json_is_refused(document: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not JSON"):
        Sampling.from_json(document)


def test_a_long_wrong_value_is_not_repeated_in_full() -> None:
    with pytest.raises(InvalidRequest) as caught:
        Sampling.from_json(json.dumps({"max_tokens": "9" * 5000}).encode())
    assert len(str(caught.value)) < 300
