"""Checkpoints in diffusers' layout, one of each kind: every graph is diffusers' own on any batch and size."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from export.diffusion_checkpoint import Parts, load_parts, read_draw_checkpoint
from export.diffusion_graphs import DrawShape
from export.diffusion_parity import (
    compare_pixels,
    denoiser_feed,
    reference_pixels,
    reference_prediction,
    reference_text,
    run_text_encoder,
)
from export.parity import TOLERANCE, compare, open_session
from proteus import configs
from proteus.deployment import Deployment
from proteus.manifest import DrawManifest
from tests import tiny_diffusers

pytestmark = [pytest.mark.oracle, pytest.mark.slow]


@dataclass(frozen=True)
class Exported:
    out: Path
    report: dict[str, object]
    parts: Parts
    shape: DrawShape

    @property
    def repository(self) -> Path:
        return self.out / "model_repository"


@pytest.fixture(scope="module", params=list(tiny_diffusers.KINDS))
def exported(request: pytest.FixtureRequest, drawn_export: Callable[[str], tuple[Path, Path]]) -> Exported:
    """Made by the command itself."""
    checkpoint, out = drawn_export(request.param)
    parts = load_parts(read_draw_checkpoint(checkpoint))
    report = json.loads((out / "model_repository/denoiser/1/export.json").read_text())
    return Exported(out, report, parts, DrawShape.of(parts))


def test_text_encoder_is_that_of_the_pipeline(exported: Exported) -> None:
    prompts = ["a blue circle on a white background", "the top", "", "a", "17 zebras"]
    session = open_session(exported.repository / "text_encoder/1/model.onnx")
    key = np.arange(5 * 32, dtype=np.uint8).reshape(5, 32)
    got = run_text_encoder(session, exported.parts, exported.shape, prompts, key)
    states, pooled = reference_text(exported.parts, exported.shape, prompts)
    compare("text_encoder", "5 prompts", got["text_states"], states)
    assert np.array_equal(got["cache_key_echo"], key)
    if pooled is not None:
        compare("text_encoder", "5 prompts, pooled", got["pooled"], pooled)
    assert ("pooled" in got) == (pooled is not None)


@pytest.mark.parametrize(("rows", "high", "wide"), [(7, 3, 1), (2, 1, 7), (16, 2, 2)])
def test_denoiser_is_that_of_the_pipeline(exported: Exported, rows: int, high: int, wide: int) -> None:
    multiple = exported.shape.size_multiple
    feed = denoiser_feed(exported.shape, rows, high * multiple, wide * multiple, seed=9)
    (got,) = open_session(exported.repository / "denoiser/1/denoiser.onnx").run(None, feed)
    compare("denoiser", f"{rows} rows", got, reference_prediction(exported.parts, feed))


@pytest.mark.parametrize(("batch", "height", "width"), [(1, 2, 6), (4, 10, 4)])
def test_pixels_are_those_of_the_pipeline(exported: Exported, batch: int, height: int, width: int) -> None:
    latents = denoiser_feed(exported.shape, batch, height, width, seed=9)["latents"]
    (got,) = open_session(exported.repository / "vae_decoder/1/model.onnx").run(None, {"latents": latents})
    compare_pixels(f"{batch} pictures", got, reference_pixels(exported.parts, latents))


def test_graphs_have_the_names_of_the_contract_and_no_operator_of_one_runtime(exported: Exported) -> None:
    for file, inputs in (
        ("text_encoder/1/model.onnx", [*(text.tensor for text in exported.parts.checkpoint.texts), "cache_key"]),
        ("denoiser/1/denoiser.onnx", list(denoiser_feed(exported.shape, 1, 2, 2))),
        ("vae_decoder/1/model.onnx", ["latents"]),
    ):
        model = onnx.load(exported.repository / file)
        assert [value.name for value in model.graph.input] == inputs
        assert {node.domain for node in model.graph.node} == {""}, file
        assert not {node.op_type for node in model.graph.node} & {"If", "Loop", "Scan", "NonZero"}, file


def test_manifest_states_what_the_configs_say(exported: Exported) -> None:
    manifest, shape = DrawManifest.load(exported.repository), exported.shape
    checkpoint = exported.parts.checkpoint
    assert (manifest.family, manifest.prediction) == (checkpoint.kind.family, checkpoint.prediction)
    assert manifest.scheduler == json.loads((checkpoint.folder / "scheduler/scheduler_config.json").read_text())
    assert [text.tensor for text in manifest.text_inputs] == [text.tensor for text in checkpoint.texts]
    assert (manifest.latent_channels, manifest.vae_factor) == (exported.parts.vae.config.latent_channels, 4)
    assert (manifest.text_tokens, manifest.text_width) == (shape.text_tokens, shape.text_width)
    assert np.array(manifest.preview).shape == (manifest.latent_channels + 1, 3)
    parity = exported.report["parity"]
    assert isinstance(parity, dict)
    assert set(parity) == {"text_encoder", "denoiser", "vae_decoder", "all together"}
    assert exported.report["tolerance"] == TOLERANCE


def test_deployment_folder_serves_the_drawing_models_alone(exported: Exported) -> None:
    deployment = Deployment.load(exported.out / "deployment.toml")
    manifest = DrawManifest.load(exported.repository)
    assert (deployment.reads, deployment.draws, deployment.name) == (False, True, "drawn-one")
    assert configs.stale(deployment) == []
    assert not list(exported.out.rglob("*.safetensors"))
    models = {path.parent.name for path in exported.repository.glob("*/config.pbtxt")}
    assert models == {"draw", "text_encoder", "denoiser", "vae_decoder"}
    limits = deployment.drawing.limits
    multiple_px = manifest.vae_factor * manifest.size_multiple
    assert limits.side_multiple_px == multiple_px
    assert limits.default_px[0] % multiple_px == 0 and limits.min_side_px <= limits.default_px[0] <= limits.max_side_px
    for text in manifest.text_inputs:
        assert (deployment.drawing.checkpoint_path / text.folder / "tokenizer.json").is_file()
