"""The parts of the engine on TensorRT-LLM: what it asks for, refuses and survives; and the stand-in it is tried on."""

from __future__ import annotations

import asyncio
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proteus.deployment import Deployment, DeploymentError
from proteus.errors import Stalled
from proteus.language.engines import ENGINES, open_engine
from proteus.language.generation import GenerationRequest, Scheduling
from proteus.language.sampling import Sampling
from proteus.language.tensorrt_llm_engine import TensorRtLlmEngine
from proteus.language.tensorrt_llm_options import open_llm
from proteus.language.tensorrt_llm_prompt import cache_salt, llm_inputs, media_keys
from proteus.language.tensorrt_llm_versions import Version, check_version, load_api
from proteus.language.tokenizer import load_tokenizer
from proteus.limits_gpu import GpuLlm
from tests.language.clients import PROMPT, Client, ask, engine_limits
from tests.language.engine_contract import asked
from tests.language.llm_api_contract import LlmApiContract
from tests.language.prompts import Prompt, spell

GPU = GpuLlm(runtime="tensorrt_llm")


class TestTheStandIn(LlmApiContract):
    @pytest.fixture(scope="class")
    @classmethod
    def api(cls, tensorrt_llm_api: Any) -> Any:
        return tensorrt_llm_api

    @pytest.fixture(scope="class")
    @classmethod
    def checkpoint(cls, tiny_checkpoint: Path) -> Path:
        return tiny_checkpoint

    @pytest.fixture(scope="class")
    @classmethod
    def widened(cls) -> Any:
        return lambda prompt: prompt


@pytest.fixture
def engine(tensorrt_llm_engine: TensorRtLlmEngine) -> TensorRtLlmEngine:
    return tensorrt_llm_engine


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("1.2.0", Version(1, 2, 0)),
        ("1.2.1.post2", Version(1, 2, 1)),
        ("1.3.0rc26", Version(1, 3, 0, 26)),
        ("1.3.0rc26.post1+nv26.10", Version(1, 3, 0, 26)),
        ("1.4.0", Version(1, 4, 0)),
    ],
)
def test_versions_that_are_known(text: str, version: Version) -> None:
    assert check_version(text) == version
    assert text.startswith(str(version))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("1.1.0", "1.1.0 is too old"),
        ("1.2.0rc8", "1.2.0rc8 is too old"),
        ("1.5.0rc0", "newer than what this release was written for"),
        ("2.0.0", "newer than"),
        ("", "calls itself ''"),
    ],
)
def test_versions_that_are_not(text: str, what: str) -> None:
    with pytest.raises(
        DeploymentError, match=f"{what}.*limit: .*1.2.0.*fix: use the image nvcr.io/nvidia/tritonserver"
    ):
        check_version(text)


def test_a_release_candidate_comes_before_its_release() -> None:
    assert Version(1, 3, 0, 26) < Version(1, 3, 0) < Version(1, 3, 1, 0)


def test_who_has_no_tensorrt_llm_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    with pytest.raises(DeploymentError, match=r"TensorRT-LLM is not installed.*26.10-trtllm-python-py3"):
        load_api()


@pytest.mark.parametrize(
    ("module", "attribute", "value", "what"),
    [
        ("tensorrt_llm", "__version__", "0.21.0", "TensorRT-LLM 0.21.0 is too old"),
        ("tensorrt_llm", "SamplingParams", lambda max_tokens: None, "SamplingParams does not know end_id, pad_id"),
        ("tensorrt_llm.llmapi", "KvCacheConfig", lambda dtype: None, "KvCacheConfig does not know enable_block_reuse"),
        ("tensorrt_llm.inputs.multimodal", "MultimodalInput", lambda: None, "does not know multimodal_hashes"),
    ],
)
def test_what_the_engine_calls_must_be_there(
    tensorrt_llm_api: Any, monkeypatch: pytest.MonkeyPatch, module: str, attribute: str, value: Any, what: str
) -> None:
    monkeypatch.setattr(sys.modules[module], attribute, value)
    with pytest.raises(DeploymentError, match=what):
        load_api()


def test_salts_must_be_known_to_generate(tensorrt_llm_api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    unsalted = types.SimpleNamespace(generate_async=lambda inputs, sampling_params, streaming: None)
    monkeypatch.setattr(sys.modules["tensorrt_llm"], "LLM", unsalted)
    with pytest.raises(DeploymentError, match=r"LLM.generate_async does not know cache_salt"):
        load_api()


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tensorrt_llm.py").write_text("raise OSError('libcuda.so.1: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tensorrt_llm", raising=False)
    with pytest.raises(DeploymentError, match=r"cannot be loaded here \(libcuda.so.1"):
        load_api()


def test_prompts_with_rows_must_have_a_way_in(tensorrt_llm_api: Any, tiny_checkpoint: Path) -> None:
    closed = replace(tensorrt_llm_api, LLM=lambda **_: object())
    with pytest.raises(DeploymentError, match=r"LLM has no input_processor"):
        open_llm(closed, checkpoint=tiny_checkpoint, llm=engine_limits(), gpu=GPU)


def test_a_cancel_before_the_hand_over_asks_for_nothing(
    engine: TensorRtLlmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = engine._placement.place

    def place_and_cancel(now_s: float) -> Any:
        placed = place(now_s)
        for task in placed:
            engine._loop.call_soon(engine._turn)
            engine._placement.cancel(task.key)
        return placed

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("nobody wants it")

    monkeypatch.setattr(engine._placement, "place", place_and_cancel)
    monkeypatch.setattr(engine._llm, "generate_async", never)
    follow = engine._follow

    async def follow_late(request: Any) -> None:
        await asyncio.sleep(0)
        await follow(request)

    monkeypatch.setattr(engine, "_follow", follow_late)
    client = Client(engine, PROMPT).submit().wait()
    assert client.finish.reason == "cancelled"
    assert engine._failures == 0


def request_of(prompt: Prompt, *, scope: str = "a", names: bool = True) -> GenerationRequest:
    return GenerationRequest(
        request_key=b"key",
        input_ids=np.array(prompt.ids, dtype=np.int32),
        visual_tokens=prompt.rows,
        visual_spans=prompt.spans,
        media_keys=prompt.keys if names else (),
        sampling=Sampling(),
        scheduling=Scheduling(cache_scope=scope),
    )


def salt_of(request: GenerationRequest, revision: str = "one") -> str:
    return cache_salt(request, media_keys(request), revision=revision)


def test_salts_differ_by_scope_weights_and_every_picture() -> None:
    salts = [
        salt_of(request_of(spell(5))),
        salt_of(request_of(spell(5), scope="")),
        salt_of(request_of(spell(5), scope="b")),
        salt_of(request_of(spell(5)), revision="two"),
        salt_of(request_of(spell("A", 5))),
        salt_of(request_of(spell("B", 5))),
        salt_of(request_of(spell("A", "B", 5))),
        salt_of(request_of(spell("B", "A", 5))),
        salt_of(request_of(spell("A", 5), names=False)),
        salt_of(request_of(spell("B", 5), names=False)),
    ]
    assert len(set(salts)) == len(salts)
    assert all(len(salt) == 64 for salt in salts)
    assert salt_of(request_of(spell("A", 5))) == salt_of(request_of(spell(3, "A", 9)))


def test_text_alone_is_ids_and_pictures_bring_theirs_unchanged() -> None:
    assert llm_inputs(request_of(spell(3)), ()) == {"prompt_token_ids": spell(3).ids}
    prompt = spell(2, "A", "B")
    given = llm_inputs(request_of(prompt), prompt.keys)["multi_modal_embeddings"]
    assert given["token_ids"] == prompt.ids
    assert given["rows"] is prompt.rows
    assert len(set(given["digests"])) == 2


@pytest.mark.parametrize("is_old", [False, True], ids=["since 1.3", "before"])
def test_rows_and_their_places_are_told_in_the_words_of_the_version(
    tensorrt_llm_api: Any, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    model = sys.modules["proteus.language.tensorrt_llm_model"]
    if is_old:
        older = sys.modules["tensorrt_llm.inputs.multimodal"].PositionsInput
        monkeypatch.setattr(model, "MultimodalInput", older)
    prompt = spell(2, "A", 3, "B")
    given = llm_inputs(request_of(prompt), prompt.keys)["multi_modal_embeddings"]
    token_ids, extra = model.RowsProcessor().attach_multimodal_embeddings({}, given, None)
    assert token_ids == prompt.ids
    assert [(start, length) for _, start, length in extra["multimodal_input"].spans] == list(prompt.spans)
    data = extra["multimodal_data"]
    assert data["multimodal_embed_mask_cumsum"].tolist() == np.cumsum(np.array(prompt.ids) == 3).tolist()
    assert np.array_equal(data["multimodal_embedding"].numpy(), prompt.rows)


@pytest.mark.parametrize("hashes", [True, False], ids=["media hashed", "ids alone"])
def test_other_pictures_share_nothing_even_where_blocks_are_known_by_ids_alone(
    engine: TensorRtLlmEngine, monkeypatch: pytest.MonkeyPatch, hashes: bool
) -> None:
    monkeypatch.setattr(sys.modules["tensorrt_llm.executor"].Executor, "hashes_media", hashes)
    one, other = spell(40, "A", 40), spell(40, "B", 40)
    answers = [asked(engine, prompt, scope="s") for prompt in (one, other, one)]
    assert [answer.finish.cached_tokens for answer in answers] == [0, 0, 64]
    assert answers[0].ids == answers[2].ids != answers[1].ids


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("language_model.model.norm.weight", "model.norm.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("model.language_model.norm.weight", "model.norm.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("vision_tower.vision_model.post_layernorm.weight", None),
        ("model.vision_tower.post_layernorm.weight", None),
        ("multi_modal_projector.linear_1.weight", None),
    ],
)
def test_weights_of_the_language_model_alone_are_taken(tensorrt_llm_api: Any, name: str, ours: str | None) -> None:
    taken = sys.modules["proteus.language.tensorrt_llm_model"].language_weights({name: 1})
    assert taken == ({} if ours is None else {ours: 1})


def test_another_language_model_is_refused_by_name(tensorrt_llm_api: Any) -> None:
    with pytest.raises(DeploymentError, match=r"language model is 'gemma'; limit: .*llama, mistral, qwen2"):
        sys.modules["proteus.language.tensorrt_llm_model"].architecture_of("gemma")


def test_prompts_are_cut_and_slots_kept(engine: TensorRtLlmEngine) -> None:
    clients = [spell(60 + number).client(engine, Sampling(max_tokens=9)).submit() for number in range(9)]
    assert [client.wait().finish.reason for client in clients] == ["length"] * 9
    executor = engine._llm._executor
    assert executor.most_active == 3  # slots
    # What is left of a prompt goes as it is where it fits beside the answers under way; else whole blocks of it.
    assert 32 <= max(executor.chunks) <= executor._args.max_num_tokens < 60


def test_work_that_no_slot_is_for_is_refused(tensorrt_llm_api: Any, llm_folder: Path, tiny_checkpoint: Path) -> None:
    limits = engine_limits(policy="pools", text_slots=1)
    limits = limits.model_copy(update={"schedule": limits.schedule.model_copy(update={"text_slots": 0})})
    engine = TensorRtLlmEngine(
        tensorrt_llm_api,
        llm_folder,
        load_tokenizer(tiny_checkpoint),
        limits,
        GPU,
        checkpoint=tiny_checkpoint,
        revision="tiny",
    )
    assert isinstance(Client(engine, PROMPT).submit().wait().failure.error, Stalled)
    engine.close()


def test_a_context_longer_than_the_checkpoints_stops_the_start(
    tensorrt_llm_api: Any, llm_folder: Path, tiny_checkpoint: Path
) -> None:
    with pytest.raises(DeploymentError, match=r"context_tokens = 1,000; limit: the checkpoint knows 512 positions"):
        TensorRtLlmEngine(
            tensorrt_llm_api,
            llm_folder,
            load_tokenizer(tiny_checkpoint),
            engine_limits(context_tokens=1000),
            GPU,
            checkpoint=tiny_checkpoint,
            revision="tiny",
        )


def test_an_engine_is_opened_by_the_name_of_its_runtime(
    tensorrt_llm_api: Any, tiny_export: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = Deployment.load(Path(__file__).parents[2] / "deployments" / "demo.toml")
    deployment = Deployment.load(tiny_export / "deployment.toml")
    folder = tiny_export / "model_repository" / "llm" / "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    with pytest.raises(DeploymentError, match=r"no runtime 'vllm'; limit: one of onnxruntime, tensorrt_llm"):
        open_engine("vllm", deployment, folder)
    bare = deployment.model_copy(update={"gpu": None})
    with pytest.raises(DeploymentError, match=r"\[gpu\] is missing"):
        open_engine("tensorrt_llm", bare, folder)
    without_weights = deployment.model_copy(update={"gpu": demo.gpu})
    with pytest.raises(DeploymentError, match=r"has no weights; limit: .*\*.safetensors beside config.json"):
        open_engine("tensorrt_llm", without_weights, folder)
    with_gpu = without_weights.model_copy(update={"checkpoint": str(tiny_checkpoint)})
    for runtime in ENGINES:
        engine = open_engine(runtime, with_gpu, folder)
        assert ask(engine, PROMPT, max_tokens=2).finish.reason in ("stop", "length")
        engine.close()
