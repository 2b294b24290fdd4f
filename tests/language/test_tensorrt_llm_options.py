"""Sampling, limits and tables of a GPU host in the words of TensorRT-LLM, and what of them it cannot do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proteus.deployment import DeploymentError
from proteus.errors import InvalidRequest
from proteus.language.sampling import Sampling
from proteus.language.tensorrt_llm_options import check_gpu_llm, llm_options, visible_devices, weights_dtype
from proteus.language.tensorrt_llm_sampling import sampling_params
from proteus.language.tensorrt_llm_versions import Version
from proteus.limits_gpu import GpuLlm
from tests.language.clients import engine_limits

GPU = GpuLlm(runtime="tensorrt_llm")


def params_of(api: Any, *, stop_ids: frozenset[int] = frozenset(), **fields: Any) -> Any:
    return sampling_params(api, Sampling(**fields), stop_ids=stop_ids, max_tokens=9, num_prompt=4, vocab_size=100)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"top_p": 0.5, "top_k": 3, "seed": 1}, {"temperature": None, "top_p": None, "top_k": None, "seed": None}),
        ({"temperature": 1e-9}, {"temperature": None}),
        ({"temperature": 1.0}, {"temperature": 1.0, "top_p": 1.0, "top_k": None, "min_p": None}),
        ({"temperature": 0.5, "top_k": 3, "min_p": 0.1, "seed": 7}, {"top_k": 3, "min_p": 0.1, "seed": 7}),
        ({"temperature": 1e300, "top_k": 10**12, "top_p": 1e-300}, {"temperature": 1e30, "top_k": None, "top_p": 1e-6}),
        ({"temperature": 1.0, "top_k": 100}, {"top_k": None}),  # of 100
        ({"repetition_penalty": 1e-300}, {"repetition_penalty": 1e-30}),
        ({"repetition_penalty": 1e300}, {"repetition_penalty": 1e30}),
        ({"frequency_penalty": 0.5}, {"frequency_penalty": 0.5, "prompt_ignore_length": 4, "presence_penalty": None}),
        ({"repetition_penalty": 1.2}, {"repetition_penalty": 1.2}),
        ({"logprobs": True}, {"logprobs": 1}),
        ({"logprobs": True, "top_logprobs": 5}, {"logprobs": 5}),
        ({}, {"end_id": -1, "stop_token_ids": None, "max_tokens": 9, "detokenize": False, "logprobs": None}),
    ],
)
def test_fields_in_the_words_of_tensorrt_llm(tensorrt_llm_api: Any, fields: Any, told: dict[str, Any]) -> None:
    params = params_of(tensorrt_llm_api, **fields)
    assert {name: getattr(params, name) for name in told} == told


def test_answers_without_a_seed_differ(tensorrt_llm_api: Any) -> None:
    old = replace(tensorrt_llm_api, version=Version(1, 2, 1))
    seeds = {params_of(tensorrt_llm_api, temperature=1.0).seed for _ in range(4)}
    assert len(seeds) == 4
    assert params_of(old, temperature=1.0).seed is None


def test_biases_are_a_row_of_the_vocabulary(tensorrt_llm_api: Any) -> None:
    row = params_of(tensorrt_llm_api, logit_bias={3: 1.5, 99: -2.0}).embedding_bias
    assert (row.shape, float(row[3]), float(row[99]), float(row.abs().sum())) == ((100,), 1.5, -2.0, 3.5)


def test_ends_are_stop_tokens_but_for_the_one_that_min_tokens_bans(tensorrt_llm_api: Any) -> None:
    several = params_of(tensorrt_llm_api, stop_ids=frozenset({7, 5}))
    banned = params_of(tensorrt_llm_api, stop_ids=frozenset({7}), min_tokens=3)
    assert (several.stop_token_ids, several.end_id, several.min_tokens) == ([5, 7], -1, None)
    assert (banned.stop_token_ids, banned.end_id, banned.min_tokens) == (None, 7, 3)
    assert params_of(tensorrt_llm_api, stop_ids=frozenset({7}), max_tokens=50, min_tokens=40).min_tokens == 9
    with pytest.raises(InvalidRequest, match=r"min_tokens = 3 with 2 tokens that end the answer; limit: one"):
        params_of(tensorrt_llm_api, stop_ids=frozenset({7, 5}), min_tokens=3)


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.1},
        {"frequency_penalty": 0.1},
        {"presence_penalty": -0.1},
        {"temperature": 1.0, "seed": 5},
        {"temperature": 1.0, "min_p": 0.1},
        {"min_tokens": 2},
    ],
)
def test_what_an_older_sampler_ignores_is_refused_by_name(tensorrt_llm_api: Any, fields: dict[str, Any]) -> None:
    old = replace(tensorrt_llm_api, version=Version(1, 2, 1))
    name = list(fields)[-1]
    with pytest.raises(
        InvalidRequest, match=rf"sampling.{name} = .*TensorRT-LLM 1.2.1 ignores it; 1.3.0rc26 and later"
    ):
        params_of(old, stop_ids=frozenset({7}), **fields)
    assert params_of(old, min_tokens=2).min_tokens is None  # nothing but the length ends it


@pytest.mark.parametrize(
    ("gpu", "visible", "devices"),
    [
        ({}, None, "0"),
        ({"device": 2, "tensor_parallel": 2}, None, "2,3"),
        ({"device": 1}, "4,7", "7"),
        ({"tensor_parallel": 2}, "GPU-a,GPU-b", "GPU-a,GPU-b"),
    ],
)
def test_devices_are_those_that_the_server_may_see(gpu: Any, visible: str | None, devices: str) -> None:
    assert visible_devices(GpuLlm(runtime="tensorrt_llm", **gpu), visible) == devices


def test_a_device_that_is_not_there_stops_the_start() -> None:
    with pytest.raises(DeploymentError, match=r"device = 1 with tensor_parallel = 2; limit: .* = 0,1 has 2 devices"):
        visible_devices(GpuLlm(runtime="tensorrt_llm", device=1, tensor_parallel=2), "0,1")


def test_int8_keys_and_values_stop_the_start() -> None:
    with pytest.raises(DeploymentError, match=r"kv_dtype = 'int8'; limit: .*auto, fp8; fix: set kv_dtype = 'fp8'"):
        check_gpu_llm(GpuLlm(runtime="tensorrt_llm", kv_dtype="int8"))


@pytest.mark.parametrize(
    ("config", "asked_for", "dtype"),
    [
        ('{"torch_dtype": "float16"}', "auto", "float16"),
        ('{"dtype": "float32", "text_config": {"dtype": "bfloat16"}}', "auto", "bfloat16"),
        ('{"text_config": {}}', "auto", "bfloat16"),
        ('{"torch_dtype": "float16"}', "bfloat16", "bfloat16"),
    ],
)
def test_weights_are_in_16_bits(tmp_path: Path, config: str, asked_for: Any, dtype: str) -> None:
    (tmp_path / "config.json").write_text(config)
    assert weights_dtype(tmp_path, GpuLlm(runtime="tensorrt_llm", dtype=asked_for)) == dtype


@pytest.mark.parametrize("config", [None, "no JSON", "[]"])
def test_a_checkpoint_without_a_config_stops_the_start(tmp_path: Path, config: str | None) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(DeploymentError, match=r"config.json is missing or wrong"):
        weights_dtype(tmp_path, GPU)


def test_limits_become_options(tensorrt_llm_api: Any, tiny_checkpoint: Path) -> None:
    gpu = GpuLlm(runtime="tensorrt_llm", kv_dtype="fp8", kv_memory_fraction=0.5, tensor_parallel=2)
    options = llm_options(tensorrt_llm_api, checkpoint=tiny_checkpoint, llm=engine_limits(), gpu=gpu)
    whole = llm_options(
        tensorrt_llm_api, checkpoint=tiny_checkpoint, llm=engine_limits(policy="fifo", prefix_bytes=0), gpu=gpu
    )
    kv = options["kv_cache_config"]
    assert (kv.dtype, kv.free_gpu_memory_fraction, kv.enable_block_reuse) == ("fp8", 0.5, True)
    assert [options[name] for name in ("max_batch_size", "max_seq_len", "max_num_tokens")] == [3, 128, 3 + 32]
    assert kv.tokens_per_block == 32
    assert (options["enable_chunked_prefill"], options["tensor_parallel_size"]) == (True, 2)
    assert (whole["enable_chunked_prefill"], whole["max_num_tokens"]) == (False, 128)
    assert whole["kv_cache_config"].enable_block_reuse is False
