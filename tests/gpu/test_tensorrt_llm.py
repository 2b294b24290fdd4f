"""The real TensorRT-LLM, put through what its stand-in is put through, and the engine on it through every engine's
contract. In 16 bits: answers are compared with transformers within what that rounds away.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from proteus.language.tensorrt_llm_engine import TensorRtLlmEngine
from proteus.language.tensorrt_llm_versions import load_api
from proteus.language.tokenizer import load_tokenizer
from proteus.limits_gpu import GpuLlm
from tests.language.clients import engine_limits
from tests.language.engine_contract import Contender, EngineContract
from tests.language.llm_api_contract import LlmApiContract

WIDTH, HEADS, CONTEXT = 256, 4, 512
GPU = GpuLlm(runtime="tensorrt_llm", kv_memory_fraction=0.05)  # several engines share the device here


@pytest.fixture(scope="module")
def api() -> Any:
    return load_api()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the tiny one, with heads of a size that attention kernels have."""
    from tests.tiny_llava import build_tiny_llava

    folder = tmp_path_factory.mktemp("gpu") / "checkpoint"
    return build_tiny_llava(folder, hidden=WIDTH, heads=HEADS, context_tokens=CONTEXT)


@pytest.fixture(scope="module")
def llm_folder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an export says of it; no token ends an answer."""
    config = json.loads((checkpoint / "config.json").read_text())
    folder = tmp_path_factory.mktemp("llm")
    facts = {
        "format": 2,
        "hidden_size": WIDTH,
        "vocab_size": config["text_config"]["vocab_size"],
        "num_layers": config["text_config"]["num_hidden_layers"],
        "num_kv_heads": config["text_config"]["num_key_value_heads"],
        "head_dim": WIDTH // HEADS,
        "context_tokens": CONTEXT,
        "image_token_id": config["image_token_index"],
        "eos_token_ids": [],
    }
    (folder / "export.json").write_text(json.dumps(facts))
    return folder


@pytest.fixture(scope="module")
def contender_on_gpu(api: Any, checkpoint: Path, llm_folder: Path) -> Contender:
    from transformers import AutoTokenizer, LlavaForConditionalGeneration

    tokenizer = load_tokenizer(checkpoint)

    def start(**limits: Any) -> TensorRtLlmEngine:
        return TensorRtLlmEngine(
            api, llm_folder, tokenizer, engine_limits(**limits), GPU, checkpoint=checkpoint, revision="tiny"
        )

    return Contender(
        start=start,
        reference=LlavaForConditionalGeneration.from_pretrained(checkpoint).eval(),
        tokenizer=AutoTokenizer.from_pretrained(checkpoint),
        width=WIDTH,
        is_exact=False,
    )


if importlib.util.find_spec("tensorrt_llm") is not None:

    class TestTheLlmApi(LlmApiContract):
        @pytest.fixture(scope="class")
        @classmethod
        def widened(cls, contender_on_gpu: Contender) -> Any:
            return contender_on_gpu.prompt

    class TestTensorRtLlm(EngineContract):
        @pytest.fixture(scope="class")
        @classmethod
        def contender(cls, contender_on_gpu: Contender) -> Contender:
            return contender_on_gpu
