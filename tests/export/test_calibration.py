"""Samples are what the exported graphs take, and what requests bring: real ones, and extreme ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from export.calibration import PICTURES, STEPS, samples_of
from proteus.deployment import Deployment

ROOT = Path(__file__).parents[2]
GRAPHS = {
    "vision_encoder": "model.onnx",
    "connector": "model.onnx",
    "text_encoder": "model.onnx",
    "denoiser": "denoiser.onnx",
    "vae_decoder": "model.onnx",
}


@pytest.fixture(scope="module")
def demo() -> Deployment:
    return Deployment.load(ROOT / "deployments/demo.toml")


@pytest.mark.parametrize("stage", GRAPHS)
def test_samples_are_what_the_graph_takes(stage: str, demo: Deployment) -> None:
    graph = onnx.load(demo.repository_path / stage / "1" / GRAPHS[stage]).graph
    samples = samples_of(demo, stage)
    assert len(samples) >= 3
    for sample in samples:
        assert set(sample) == {port.name for port in graph.input}
        for port in graph.input:
            dims, array = port.type.tensor_type.shape.dim, sample[port.name]
            assert array.dtype == onnx.helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type)
            fits = zip(array.shape, dims, strict=True)
            assert all(side == dim.dim_value for side, dim in fits if dim.HasField("dim_value"))


@pytest.mark.parametrize("stage", GRAPHS)
def test_samples_are_the_same_each_time(stage: str, demo: Deployment) -> None:
    first, second = samples_of(demo, stage), samples_of(demo, stage)
    assert all(np.array_equal(one[name], other[name]) for one, other in zip(first, second, strict=True) for name in one)


def test_pictures_are_scenes_then_all_black_all_white_and_noise(demo: Deployment) -> None:
    scenes, black, white, noise = (sample["pixel_values"] for sample in samples_of(demo, "vision_encoder"))
    assert len(scenes) == PICTURES and len({scene.tobytes() for scene in scenes}) == PICTURES
    assert (np.ptp(black), np.ptp(white)) == (0, 0) and black.max() < white.min()
    assert noise.std() > 0.4


def test_text_goes_from_none_to_as_much_as_the_encoder_has_room_for(demo: Deployment) -> None:
    together, nothing, longest = (sample["input_ids"] for sample in samples_of(demo, "text_encoder"))
    padding = nothing[0, -1]
    assert [int((ids != padding).sum()) for ids in (nothing[0], longest[0])] == [1, pytest.approx(45, abs=3)]
    assert np.array_equal(together[-2:], np.concatenate([nothing, longest]))


def test_latents_are_those_of_the_first_step_the_middle_and_the_last_with_both_branches(demo: Deployment) -> None:
    calls = samples_of(demo, "denoiser")
    assert [tuple(call["timestep"]) for call in calls[:3]] == [(999.0, 999.0), (499.0, 499.0), (124.0, 124.0)]
    assert STEPS == 8
    for call in calls:
        assert np.array_equal(call["latents"][0], call["latents"][1])
        assert not np.array_equal(call["text_states"][0], call["text_states"][1])
    assert calls[0]["latents"].std() == pytest.approx(1.0, abs=0.1)


def test_decoder_gets_finished_latents_zeros_and_noise(demo: Deployment) -> None:
    *finished, zeros, noise = (sample["latents"] for sample in samples_of(demo, "vae_decoder"))
    assert len(finished) == 2 and not zeros.any()
    assert noise.std() == pytest.approx(1.0, abs=0.1)
    assert all(latents.max() > noise.max() for latents in finished)
    last = [call["latents"][0] for call in samples_of(demo, "denoiser")[2::3]]
    assert all(0.9 < np.corrcoef(a.ravel(), b.ravel())[0, 1] < 1 for a, b in zip(finished, last, strict=True))
