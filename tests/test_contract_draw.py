"""config.pbtxt of the models that draw say what contract_draw.py, the deployment file and the manifest say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from proteus import configs
from proteus.contract_draw import DRAW_MODELS
from proteus.deployment import Deployment, DeploymentError
from proteus.limits_published import draw_from_published
from proteus.manifest import DRAW_FORMAT

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "deployments" / "demo.toml"
ONE = [("input_ids", 77)]
SD15: dict[str, Any] = {"family": "unet", "inputs": ONE, "pooled_width": 0, "latent_channels": 4}
SD3 = {"family": "sd3", "inputs": [*ONE, ("input_ids_2", 76), ("input_ids_3", 50)], "pooled_width": 64}
FLUX = {"family": "flux", "inputs": [*ONE, ("input_ids_2", 50)], "pooled_width": 32, "latent_channels": 16}
FOLDERS = pytest.mark.parametrize("facts", [SD15, SD3, FLUX], ids=["sd15", "sd3", "flux"])


def deployment_in(folder: Path, facts: dict[str, Any], **changes: Any) -> Deployment:
    """A deployment that only draws, as an export leaves it, without its ONNX files."""
    text = re.sub(r"(?m)^checkpoint = .*\n", "", DEMO.read_text(encoding="utf-8"))
    text = re.sub(r"(?m)^(# )?draw_checkpoint = \S+", 'draw_checkpoint = "draw_checkpoint"', text)
    text = re.sub(r"(?m)^repository = .*$", 'repository = "model_repository"', text)
    (folder / "deployment.toml").write_text(text, encoding="utf-8")
    manifest = {
        "format": DRAW_FORMAT,
        "revision": "00ff",
        "family": facts["family"],
        "text_inputs": [
            {"tensor": tensor, "folder": "tokenizer", "tokens": tokens, "pad_id": 0}
            for tensor, tokens in facts["inputs"]
        ],
        "text_tokens": 77,
        "text_width": 24,
        "pooled_width": facts["pooled_width"],
        "latent_channels": facts.get("latent_channels", 16),
        "vae_factor": 8,
        "size_multiple": 2,
        "prediction": "epsilon",
        "scheduler": {},
        "embedded_guidance": False,
        "preview": [[0.0, 0.0, 0.0]],
        **changes,
    }
    path = folder / "model_repository" / "denoiser" / "1" / "export.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(manifest), encoding="utf-8")
    return Deployment.load(folder / "deployment.toml")


def rendered(deployment: Deployment) -> dict[str, Any]:
    texts = configs.render(deployment, configs.read_exports(deployment))
    return {name: text_format.Parse(text, model_config_pb2.ModelConfig()) for name, text in texts.items()}


def dims(tensors: Any) -> dict[str, list[int]]:
    return {tensor.name: list(tensor.dims) for tensor in tensors}


@FOLDERS
def test_configs_have_the_tensors_that_the_checkpoint_has(tmp_path: Path, facts: dict[str, Any]) -> None:
    all_of_them = rendered(deployment_in(tmp_path, facts))
    assert all_of_them.keys() == {model.name for model in DRAW_MODELS}
    encoder, denoiser, decoder = (all_of_them[name] for name in ("text_encoder", "denoiser", "vae_decoder"))
    pooled, channels = facts["pooled_width"], facts.get("latent_channels", 16)
    assert dims(encoder.input) == {**{name: [tokens] for name, tokens in facts["inputs"]}, "cache_key": [32]}
    assert not any(tensor.optional for tensor in encoder.input), "the graph reads every one"
    states = {"text_states": [77, 24], **({"pooled": [pooled]} if pooled else {})}
    assert dims(encoder.output) == {**states, "cache_key_echo": [32]}
    assert ("pooled" in dims(denoiser.input), "negative_pooled" in dims(denoiser.input)) == (pooled > 0, pooled > 0)
    assert all(tensor.optional for tensor in denoiser.input), "a stop and a collector send none of them"
    assert dims(denoiser.output)["latents"] == [channels, -1, -1]
    assert (dims(decoder.input), dims(decoder.output)) == ({"latents": [channels, -1, -1]}, {"pixels": [-1, -1, 3]})


def test_stages_batch_queue_and_warm_up_as_the_deployment_says(tmp_path: Path) -> None:
    deployment = deployment_in(tmp_path, SD3)
    for name, stage in (
        ("text_encoder", deployment.drawing.text_encoder),
        ("vae_decoder", deployment.drawing.vae_decoder),
    ):
        config = rendered(deployment)[name]
        assert (config.backend, config.max_batch_size) == ("onnxruntime", stage.max_batch)
        assert config.dynamic_batching.max_queue_delay_microseconds == stage.max_queue_delay_us
        assert config.dynamic_batching.default_queue_policy.max_queue_size == stage.max_queue
        assert config.parameters["intra_op_thread_count"].string_value == str(stage.threads)
        assert [warmup.batch_size for warmup in config.model_warmup] == [1, stage.max_batch]
        for warmup in config.model_warmup:
            assert warmup.inputs.keys() == {tensor.name for tensor in config.input}
    (latents,) = {tuple(warmup.inputs["latents"].dims) for warmup in rendered(deployment)["vae_decoder"].model_warmup}
    assert latents == (16, 8, 8), "the default size of 64 x 64 px"


def test_text_encoder_is_cached_only_where_the_deployment_says_so(tmp_path: Path) -> None:
    deployment = deployment_in(tmp_path, SD15)
    cached = {name for name, config in rendered(deployment).items() if config.response_cache.enable}
    assert cached == {"text_encoder"}
    assert deployment.text_encoder is not None
    off = deployment.model_copy(
        update={"text_encoder": deployment.text_encoder.model_copy(update={"response_cache": False})}
    )
    assert not rendered(off)["text_encoder"].response_cache.enable


def test_door_publishes_its_limits_and_both_python_models_find_the_deployment(tmp_path: Path) -> None:
    deployment = deployment_in(tmp_path, SD15)
    door = rendered(deployment)["draw"]
    parameters = {key: value.string_value for key, value in door.parameters.items()}
    assert draw_from_published(parameters).draw == deployment.draw
    for name in ("draw", "denoiser"):
        config = rendered(deployment)[name]
        assert config.model_transaction_policy.decoupled
        relative = config.parameters["deployment"].string_value
        assert (deployment.repository_path / relative).resolve() == deployment.path


def test_denoiser_steps_in_its_own_loop_and_not_as_an_iterative_sequence(tmp_path: Path) -> None:
    """Triton's iterative sequences freeze the client of a request that begins and ends at once (server#8167)."""
    config = rendered(deployment_in(tmp_path, SD15))["denoiser"]
    assert (config.max_batch_size, config.WhichOneof("scheduling_choice")) == (0, None)


def test_new_repository_has_the_models_that_draw_and_no_others(tmp_path: Path) -> None:
    deployment = deployment_in(tmp_path, SD15)
    written = configs.write(deployment, template=ROOT / "model_repository")
    assert {path.relative_to(deployment.repository_path).as_posix() for path in written} == {
        *(f"{model.name}/{file}" for model in DRAW_MODELS for file in ("config.pbtxt", "configs/gpu.pbtxt")),
        *(f"{name}/1/model.py" for name in ("draw", "denoiser")),
    }
    assert set(deployment.models) == {model.name for model in DRAW_MODELS}


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (
            {"vae_factor": 16, "size_multiple": 3},
            r"draw.side_multiple_px = 32; limit: a multiple of 48 px.*fix: set .* = 48, and sizes",
        ),
        ({"max_side": 11}, r"draw.max_side_px = 96; limit: 88 px, the last position.*fix: lower draw.max_side_px"),
    ],
)
def test_sizes_that_the_checkpoint_cannot_draw_are_refused(
    manifest: dict[str, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DeploymentError, match=message):
        configs.read_exports(deployment_in(tmp_path, SD15, **manifest))


def test_missing_manifest_names_the_file_and_the_fix(tmp_path: Path) -> None:
    deployment = deployment_in(tmp_path, SD15)
    (deployment.repository_path / "denoiser" / "1" / "export.json").unlink()
    with pytest.raises(DeploymentError, match=r"export\.json cannot be read.*fix: export the checkpoint"):
        configs.read_exports(deployment)
