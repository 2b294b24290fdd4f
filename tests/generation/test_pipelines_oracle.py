"""Prompt to latent through the exported files and the engine, as diffusers' own pipelines draw it from the same noise.

All settings of a checkpoint are drawn at once, so that each is also among others at other steps.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import numpy_helper
from safetensors.torch import load_file, save_file

from proteus.deployment import Deployment
from proteus.door.draw_text import PromptTokenizer
from proteus.generation.engine import DenoiseEngine
from proteus.generation.noise import INITIAL, noise
from proteus.generation.task import Condition, Floats, Settings
from proteus.limits import SamplerName
from proteus.manifest import DrawManifest
from tests.generation.painters import Painter, engine_limits
from tests.generation.reference import FLOW, VP
from tests.generation.schedulers import SAMPLERS

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
TOLERANCE = 1e-4
CALM = 0.25  # of random weights' predictions: the whole of them is so rough that float32 alone leads elsewhere
PROMPT, NEGATIVE = "a red circle at the top left on a white background", "a green square"
UNITS = (4, 3)  # width and height, in the smallest sides that the checkpoint has
DEMO = Path(__file__).parents[2] / "deployments" / "demo.toml"
LAST_LAYERS = ("conv_out.", "proj_out.")


@dataclass(frozen=True)
class Exported:
    checkpoint: Path
    deployment: Deployment
    manifest: DrawManifest

    @property
    def texts(self) -> dict[str, Condition]:
        """Each as the door has it encoded."""
        drawing = self.deployment.drawing
        tokenizer = PromptTokenizer.from_checkpoint(drawing.checkpoint_path, self.manifest.text_inputs)
        session = ort.InferenceSession(self.deployment.repository_path / "text_encoder" / "1" / "model.onnx")
        names = [output.name for output in session.get_outputs()]
        conditions = {}
        for text in (PROMPT, NEGATIVE):
            ids = {name: array[None] for name, array in tokenizer.encode(text, "prompt").arrays.items()}
            outputs = session.run(names, {**ids, "cache_key": np.zeros((1, 32), dtype=np.uint8)})
            told = dict(zip(names, outputs, strict=True))
            pooled = told["pooled"][0] if "pooled" in told else None
            conditions[text] = Condition(states=told["text_states"][0], pooled=pooled)
        return conditions

    @property
    def all_settings(self) -> list[Settings]:
        side_px = self.manifest.vae_factor * self.manifest.size_multiple
        width_px, height_px = (units * side_px for units in UNITS)
        return [
            Settings(
                width_px=width_px, height_px=height_px, steps=steps, guidance=guidance, sampler=sampler, seed=steps
            )
            for sampler, steps, guidance in product(SAMPLERS, (4, 20), (1.0, 3.0))
        ]

    def noise_of(self, settings: Settings) -> Floats:
        factor = self.manifest.vae_factor
        shape = (self.manifest.latent_channels, settings.height_px // factor, settings.width_px // factor)
        return noise(settings.seed, settings.image_index, INITIAL, shape)


@pytest.mark.parametrize("kind", ["sd15", "sd3", "flux"])
def test_latents_are_those_of_diffusers_pipelines(
    kind: str, drawn_export: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    copies = zip(drawn_export(kind), ("checkpoint", "out"), strict=True)
    checkpoint, out = (Path(shutil.copytree(made, tmp_path / name)) for made, name in copies)
    _calm(checkpoint, out / "model_repository" / "denoiser" / "1")
    _compare(checkpoint, Deployment.load(out / "deployment.toml"))


def test_latents_of_the_demo_are_those_of_its_pipeline() -> None:
    torch.set_num_threads(1)
    deployment = Deployment.load(DEMO)
    _compare(deployment.drawing.checkpoint_path, deployment)


def _compare(checkpoint: Path, deployment: Deployment) -> None:
    """Every sampler, few and many steps, without guidance and with it."""
    exported = Exported(checkpoint, deployment, DrawManifest.load(deployment.repository_path))
    reference = _PIPELINES[exported.manifest.family](exported)
    for settings, ours in zip(exported.all_settings, _drawn(exported), strict=True):
        np.testing.assert_allclose(ours, reference(settings), rtol=0, atol=TOLERANCE, err_msg=str(settings))


def _calm(checkpoint: Path, exported: Path) -> None:
    """Both alike. Published schedulers of this kind do not clip latents either, which is diffusers' default and rough
    as well.
    """
    manifest = exported / "export.json"
    for path in checkpoint.glob("scheduler/*.json"):
        scheduler = json.loads(path.read_text())
        if scheduler["_class_name"] == "PNDMScheduler":
            scheduler["clip_sample"] = False
            path.write_text(json.dumps(scheduler))
            manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "scheduler": scheduler}))
    (path,) = (*checkpoint.glob("unet/*.safetensors"), *checkpoint.glob("transformer/*.safetensors"))
    weights = load_file(path)
    last = {name: weight for name, weight in weights.items() if name.startswith(LAST_LAYERS)}
    assert len(last) == 2
    save_file(weights | {name: CALM * weight for name, weight in last.items()}, path, metadata={"format": "pt"})
    model = onnx.load(exported / "denoiser.onnx")
    for weight in last.values():
        (held,) = (one for one in model.graph.initializer if _is_of(numpy_helper.to_array(one), weight.numpy()))
        held.CopyFrom(numpy_helper.from_array(np.float32(CALM) * numpy_helper.to_array(held), held.name))
    onnx.save(model, exported / "denoiser.onnx")


def _is_of(held: Floats, weight: Floats) -> bool:
    """A graph may hold a matrix turned."""
    return np.array_equal(held, weight) or np.array_equal(held, weight.T)


def _drawn(exported: Exported) -> list[Floats]:
    texts = exported.texts
    folder = exported.deployment.repository_path / "denoiser" / "1"
    engine = DenoiseEngine(folder, exported.manifest, engine_limits(live_images=8))
    try:
        painters = [Painter(engine, settings, texts[PROMPT], texts[NEGATIVE]) for settings in exported.all_settings]
        for painter in painters:
            painter.submit()
        return [painter.wait().latent for painter in painters]
    finally:
        engine.close()


def _scheduler(folder_scheduler: Any, sampler: SamplerName, schedulers: Mapping[SamplerName, Any]) -> Any:
    config, given = folder_scheduler.config, {}
    if schedulers is not VP and sampler == "dpmpp_2m":
        given = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": config.get("shift", 1.0)}
    return schedulers[sampler].from_config(config, **given)


def _given(exported: Exported, settings: Settings) -> dict[str, Any]:
    return {
        "prompt": PROMPT,
        "height": settings.height_px,
        "width": settings.width_px,
        "num_inference_steps": settings.steps,
        "guidance_scale": settings.guidance,
        "latents": torch.from_numpy(exported.noise_of(settings)[None]),
        "output_type": "latent",
    }


def _unet(exported: Exported) -> Callable[[Settings], Floats]:
    pipeline = _loaded(diffusers.StableDiffusionPipeline, exported, safety_checker=None)
    of_folder = pipeline.scheduler

    def draw(settings: Settings) -> Floats:
        pipeline.scheduler = _scheduler(of_folder, settings.sampler, VP)
        return _latents(pipeline(**_given(exported, settings), negative_prompt=NEGATIVE))

    return draw


def _sd3(exported: Exported) -> Callable[[Settings], Floats]:
    pipeline = _loaded(diffusers.StableDiffusion3Pipeline, exported)
    of_folder, t5_tokens = pipeline.scheduler, exported.manifest.text_inputs[-1].tokens

    def draw(settings: Settings) -> Floats:
        pipeline.scheduler = _scheduler(of_folder, settings.sampler, FLOW)
        given = _given(exported, settings)
        return _latents(pipeline(**given, negative_prompt=NEGATIVE, max_sequence_length=t5_tokens))

    return draw


class _HeunAsOthers(diffusers.FlowMatchHeunDiscreteScheduler):
    """Flux's pipeline hands over what Heun's schedule has no use for."""

    def set_timesteps(self, num_inference_steps: Any = None, device: Any = None, sigmas: Any = None, mu: Any = None):  # type: ignore[no-untyped-def]
        super().set_timesteps(len(sigmas), device)


def _flux(exported: Exported) -> Callable[[Settings], Floats]:
    pipeline = _loaded(diffusers.FluxPipeline, exported)
    of_folder, t5_tokens = pipeline.scheduler, exported.manifest.text_inputs[-1].tokens

    def draw(settings: Settings) -> Floats:
        pipeline.scheduler = _scheduler(of_folder, settings.sampler, {**FLOW, "heun": _HeunAsOthers})
        given = _given(exported, settings)
        given["latents"] = pipeline._pack_latents(given["latents"], *given["latents"].shape)
        (packed,) = pipeline(**given, max_sequence_length=t5_tokens, return_dict=False)
        unpacked = pipeline._unpack_latents(packed, settings.height_px, settings.width_px, pipeline.vae_scale_factor)
        return unpacked[0].numpy()

    return draw


_PIPELINES: Mapping[str, Callable[[Exported], Callable[[Settings], Floats]]] = {
    "unet": _unet,
    "sd3": _sd3,
    "flux": _flux,
}


def _loaded(kind: Any, exported: Exported, **options: Any) -> Any:
    pipeline = kind.from_pretrained(exported.checkpoint, dtype=torch.float32, **options)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _latents(answer: Any) -> Floats:
    latents: Floats = answer.images[0].numpy()
    return latents
