"""The behaviours that every engine has, of those that run here: ONNX Runtime's, and TensorRT-LLM's on a stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proteus.language.engine import OnnxEngine
from proteus.language.tensorrt_llm_engine import TensorRtLlmEngine
from proteus.language.tokenizer import load_tokenizer
from proteus.limits_gpu import GpuLlm
from tests.language.clients import engine_limits
from tests.language.engine_contract import Contender, EngineContract
from tests.language.prompts import WIDTH

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="session")
def parts(tiny_checkpoint: Path) -> dict[str, Any]:
    from transformers import AutoTokenizer, LlavaForConditionalGeneration

    return {
        "reference": LlavaForConditionalGeneration.from_pretrained(tiny_checkpoint).eval(),
        "tokenizer": AutoTokenizer.from_pretrained(tiny_checkpoint),
        "width": WIDTH,
        "is_exact": True,
    }


class TestOnnxRuntime(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def contender(cls, parts: dict[str, Any], llm_folder: Path, tiny_checkpoint: Path) -> Contender:
        tokenizer = load_tokenizer(tiny_checkpoint)

        def start(**limits: Any) -> OnnxEngine:
            return OnnxEngine(llm_folder, tokenizer, engine_limits(**limits), revision="tiny")

        return Contender(start=start, **parts)


class TestTensorRtLlm(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def contender(
        cls, parts: dict[str, Any], llm_folder: Path, tiny_checkpoint: Path, tensorrt_llm_api: Any
    ) -> Contender:
        tokenizer = load_tokenizer(tiny_checkpoint)

        def start(**limits: Any) -> TensorRtLlmEngine:
            return TensorRtLlmEngine(
                tensorrt_llm_api,
                llm_folder,
                tokenizer,
                engine_limits(**limits),
                GpuLlm(runtime="tensorrt_llm"),
                checkpoint=tiny_checkpoint,
                revision="tiny",
            )

        return Contender(start=start, **parts)
