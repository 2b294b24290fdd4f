"""config.pbtxt and docs/contract.md say what contract.py and the deployment file say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from proteus import configs, contract_page
from proteus.configs import Exports
from proteus.contract import MODELS, ModelSpec, Shapes
from proteus.deployment import Deployment, DeploymentError
from proteus.manifest import FORMAT

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "deployments" / "demo.toml"
SHAPES = Shapes(image_size_px=48, visual_tokens=9, feature_width=32, hidden_size=64)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """A deployment folder as an export leaves it, without its ONNX files."""
    text = DEMO.read_text(encoding="utf-8")
    text = re.sub(r"(?m)^checkpoint = .*$", 'checkpoint = "checkpoint"', text)
    text = re.sub(r"(?m)^draw_checkpoint = .*\n", "", text)
    text = re.sub(r"(?m)^repository = .*$", 'repository = "model_repository"', text)
    (tmp_path / "deployment.toml").write_text(text, encoding="utf-8")
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    vision = {"image_size": 48, "patch_size": 16, "hidden_size": 32}
    write(checkpoint / "config.json", {"model_type": "llava", "vision_config": vision})
    write(checkpoint / "preprocessor_config.json", {"size": {"height": 48, "width": 48}, "do_center_crop": False})
    write_manifest(tmp_path)
    return Deployment.load(tmp_path / "deployment.toml")


def write(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), encoding="utf-8")


def write_manifest(folder: Path, **changes: Any) -> None:
    facts = {
        "format": FORMAT,
        "revision": "00ff",
        "image_size": 48,
        "visual_tokens": 9,
        "hidden_size": 64,
        "vocab_size": 512,
        "context_tokens": 1024,
    }
    write(folder / "model_repository" / "llm" / "1" / "export.json", {**facts, **changes})


def parse(text: str) -> Any:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def rendered(deployment: Deployment) -> dict[str, Any]:
    return {name: parse(text) for name, text in configs.render(deployment, Exports(reads=SHAPES)).items()}


def test_committed_configs_are_those_of_the_demo_deployment() -> None:
    assert configs.stale(Deployment.load(DEMO)) == []


def test_document_of_the_contract_is_up_to_date() -> None:
    assert (ROOT / "docs" / "contract.md").read_text(encoding="utf-8") == contract_page.markdown()


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_config_has_the_tensors_of_the_contract(deployment: Deployment, model: ModelSpec) -> None:
    config = rendered(deployment)[model.name]
    for specs, tensors in ((model.inputs, config.input), (model.outputs, config.output)):
        assert [tensor.name for tensor in tensors] == [spec.name for spec in specs]
        for spec, tensor in zip(specs, tensors, strict=True):
            assert model_config_pb2.DataType.Name(tensor.data_type) == f"TYPE_{spec.dtype}"
            assert tuple(tensor.dims) == SHAPES.resolve(spec.dims)
    assert [tensor.optional for tensor in config.input] == [spec.optional for spec in model.inputs]
    assert [tensor.allow_ragged_batch for tensor in config.input] == [spec.ragged for spec in model.inputs]
    assert config.model_transaction_policy.decoupled == model.decoupled
    assert (config.max_batch_size > 0) == model.batched


@pytest.mark.parametrize("name", ["image_preprocess", "vision_encoder", "connector"])
def test_stage_batches_queues_and_instances_come_from_the_deployment(deployment: Deployment, name: str) -> None:
    config, stage = rendered(deployment)[name], getattr(deployment.stages, name)
    assert config.max_batch_size == stage.max_batch
    assert config.instance_group[0].count == stage.instances
    assert config.dynamic_batching.max_queue_delay_microseconds == stage.max_queue_delay_us
    assert config.dynamic_batching.default_queue_policy.max_queue_size == stage.max_queue


@pytest.mark.parametrize("name", ["vision_encoder", "connector"])
def test_onnx_stage_never_uses_more_threads_than_its_share(deployment: Deployment, name: str) -> None:
    config, stage = rendered(deployment)[name], getattr(deployment.stages, name)
    threads = int(config.parameters["intra_op_thread_count"].string_value)
    assert threads == stage.threads
    assert threads * config.instance_group[0].count <= deployment.cores


def test_onnx_stage_is_warm_before_it_is_ready(deployment: Deployment) -> None:
    for name, tensor in (("vision_encoder", "pixel_values"), ("connector", "image_features")):
        config, stage = rendered(deployment)[name], getattr(deployment.stages, name)
        assert [warmup.batch_size for warmup in config.model_warmup] == [1, stage.max_batch]
        (dims,) = [list(tensor.dims) for tensor in config.input]
        assert all(list(warmup.inputs[tensor].dims) == dims for warmup in config.model_warmup)


def test_no_model_that_reads_has_the_response_cache(deployment: Deployment) -> None:
    """The door keeps visual tokens itself: Triton's cache hashes the whole picture for each question."""
    rendering = rendered(deployment)
    assert not any(rendering[model.name].response_cache.enable for model in MODELS)


def test_python_models_find_the_deployment_from_their_repository(deployment: Deployment) -> None:
    for name in ("chat", "llm", "image_preprocess"):
        relative = rendered(deployment)[name].parameters["deployment"].string_value
        assert (deployment.repository_path / relative).resolve() == deployment.path


def test_new_repository_is_filled_with_configs_and_models(deployment: Deployment) -> None:
    written = configs.write(deployment, template=ROOT / "model_repository")
    repository = deployment.repository_path
    assert {path.relative_to(repository).as_posix() for path in written} == {
        *(f"{model.name}/{file}" for model in MODELS for file in ("config.pbtxt", "configs/gpu.pbtxt")),
        *(f"{name}/1/model.py" for name in ("chat", "llm", "image_preprocess")),
    }
    assert (repository / "image_tokens" / "1" / ".gitkeep").exists()
    assert configs.stale(deployment) == []
    (repository / "llm" / "config.pbtxt").write_text("", encoding="utf-8")
    assert configs.stale(deployment) == [repository / "llm" / "config.pbtxt"]


def test_export_of_another_checkpoint_is_refused(deployment: Deployment) -> None:
    write_manifest(deployment.path.parent, visual_tokens=16)
    with pytest.raises(DeploymentError, match=r"\(48, 16\).*\(48, 9\).*export the checkpoint again"):
        configs.read_shapes(deployment)


def test_context_longer_than_the_checkpoints_is_refused(deployment: Deployment) -> None:
    write_manifest(deployment.path.parent, context_tokens=512)
    with pytest.raises(DeploymentError, match=r"context_tokens = 1024.*max_position_embeddings = 512"):
        configs.read_shapes(deployment)


def test_prefix_cache_without_room_for_a_block_is_refused(deployment: Deployment) -> None:
    def with_bytes(max_bytes: int) -> Deployment:
        cache = deployment.llm.prefix_cache.model_copy(update={"max_bytes": max_bytes})
        return deployment.model_copy(update={"llm": deployment.llm.model_copy(update={"prefix_cache": cache})})

    with pytest.raises(DeploymentError, match=r"max_bytes = 1 has no room.*limit: [0-9,]+ bytes, a block of 16 tokens"):
        configs.read_shapes(with_bytes(1))
    configs.read_shapes(with_bytes(0))


def test_tier_that_would_refuse_every_picture_is_refused(deployment: Deployment) -> None:
    low = deployment.tiers.low.model_copy(update={"max_visual_tokens": 8})
    tiers = deployment.tiers.model_copy(update={"low": low})
    with pytest.raises(DeploymentError, match=r"tiers\.low\.max_visual_tokens = 8 refuses every.*raise it to 9"):
        configs.read_shapes(deployment.model_copy(update={"tiers": tiers}))


@pytest.mark.parametrize(("table", "name"), [("video", "mp4"), ("audio", "wav")])
def test_formats_that_the_request_document_has_no_place_for_are_not_published(
    deployment: Deployment, table: str, name: str
) -> None:
    limits = getattr(deployment, table).model_copy(update={"formats": [name]})
    with pytest.raises(
        DeploymentError, match=rf"{table}\.formats = {name}; limit: none.*fix: set {table}\.formats = \[\]"
    ):
        configs.read_shapes(deployment.model_copy(update={table: limits}))


def test_missing_or_damaged_manifest_is_named(deployment: Deployment) -> None:
    write_manifest(deployment.path.parent, format=FORMAT - 1)
    with pytest.raises(DeploymentError, match=rf"export\.json has format {FORMAT - 1}"):
        configs.read_shapes(deployment)
    write_manifest(deployment.path.parent, revision=None)
    with pytest.raises(DeploymentError, match=r"export\.json: revision missing or wrong"):
        configs.read_shapes(deployment)
    (deployment.repository_path / "llm" / "1" / "export.json").unlink()
    with pytest.raises(DeploymentError, match=r"export\.json cannot be read"):
        configs.read_shapes(deployment)


def test_check_says_which_file_differs_and_write_mends_it(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(deployment.path)]
    assert configs.main(["--check", *arguments]) == 1
    assert "differs" in capsys.readouterr().out
    assert "config.pbtxt of chat, llm, " in (configs.warning(deployment.path) or "")
    assert configs.main(arguments) == 0
    assert configs.warning(deployment.path) is None
    assert configs.main(["--check", *arguments]) == 0
    assert configs.main([str(deployment.path.parent / "nowhere.toml")]) == 2
    assert "nowhere.toml cannot be read" in capsys.readouterr().err
