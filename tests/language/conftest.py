from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proteus.language.engine import OnnxEngine
from proteus.language.tensorrt_llm_engine import TensorRtLlmEngine
from proteus.language.tensorrt_llm_versions import load_api
from proteus.language.tokenizer import load_tokenizer
from proteus.limits_gpu import GpuLlm
from tests.language import plant
from tests.language.checkpoints import TOKENIZERS, build_checkpoint
from tests.language.clients import LONG, PROMPT, Client, ask, assert_empty, engine_limits


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint folder without weights for each kind of tokenizer."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {kind: build_checkpoint(root / kind, kind) for kind in TOKENIZERS}


@pytest.fixture(scope="session")
def llm_folder(tiny_export: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export, told that no token ends an answer, so that lengths are known."""
    source = tiny_export / "model_repository" / "llm" / "1"
    return plant.copy(source, tmp_path_factory.mktemp("llm") / "1", eos_token_ids=[])


@pytest.fixture(scope="session")
def tensorrt_llm_api() -> Iterator[Any]:
    """Of the stand-in in tests/fakes, which needs torch."""
    stand_ins = str(Path(__file__).parents[1] / "fakes")
    sys.path.insert(0, stand_ins)
    try:
        yield load_api()
    finally:
        sys.path.remove(stand_ins)
        for name in [name for name in sys.modules if name.split(".")[0] == "tensorrt_llm"]:
            del sys.modules[name]
        sys.modules.pop("proteus.language.tensorrt_llm_model", None)


@pytest.fixture
def tensorrt_llm_engine(tensorrt_llm_api: Any, llm_folder: Path, tiny_checkpoint: Path) -> Iterator[TensorRtLlmEngine]:
    """On the stand-in, for the test alone."""
    engine = TensorRtLlmEngine(
        tensorrt_llm_api,
        llm_folder,
        load_tokenizer(tiny_checkpoint),
        engine_limits(),
        GpuLlm(runtime="tensorrt_llm"),
        checkpoint=tiny_checkpoint,
        revision="tiny",
    )
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def start_engine(tiny_checkpoint: Path) -> Any:
    """Opens an engine on an llm folder; whoever calls it closes the engine."""
    tokenizer = load_tokenizer(tiny_checkpoint)

    def start(folder: Path, **limits: Any) -> OnnxEngine:
        return OnnxEngine(folder, tokenizer, engine_limits(**limits), revision="tiny")

    return start


@pytest.fixture(scope="session")
def shared_engine(start_engine: Any, llm_folder: Path) -> Iterator[OnnxEngine]:
    engine = start_engine(llm_folder)
    yield engine
    engine.close()


@pytest.fixture
def engine(shared_engine: OnnxEngine) -> Iterator[OnnxEngine]:
    """Checked after each test: nothing may be left in it."""
    yield shared_engine
    assert_empty(shared_engine)


@pytest.fixture(scope="session")
def whole(shared_engine: OnnxEngine) -> Client:
    """The undisturbed answer to PROMPT."""
    return ask(shared_engine, PROMPT, max_tokens=LONG)
