from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from proteus.errors import InvalidRequest
from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.generation.schedule import Family, NoiseSchedule
from proteus.limits import SamplerName
from proteus.manifest import DrawManifest, Prediction
from tests.generation.schedulers import DEMO, FLUX_DEV, PUBLISHED, SAMPLERS, SD3, SD15, Case, schedule_of

DEMO_SCHEDULE = schedule_of(PUBLISHED["demo"])


def test_trailing_steps_begin_at_pure_noise_and_leading_ones_at_the_offset() -> None:
    assert DEMO_SCHEDULE.grid(4, "euler").timesteps == (999, 749, 499, 249)
    leading = {**DEMO, "timestep_spacing": "leading"}  # StableDiffusionPipeline makes the offset 1
    assert NoiseSchedule.from_config(leading, "epsilon", "unet").grid(4, "ddim").timesteps == (751, 501, 251, 1)


def test_each_sampler_has_the_spacing_of_its_class_where_the_config_names_none() -> None:
    schedule = NoiseSchedule.from_config(SD15, "epsilon", "unet")
    assert {sampler: schedule.grid(2, sampler).timesteps for sampler in SAMPLERS} == {
        "euler": (999, 0),
        "ddim": (501, 1),
        "heun": (999, 0),
        "dpmpp_2m": (999, 500),
    }


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_number_of_steps_is_kept_and_noise_falls(name: str, sampler: SamplerName) -> None:
    case = PUBLISHED[name]
    schedule = schedule_of(case)
    for steps in range(1, 101):
        grid = schedule.grid(steps, sampler, case.latent_tokens)
        counts = {len(part) for part in (grid.timesteps, grid.before, grid.after, grid.input_scales)}
        assert counts == {steps} == {grid.steps}
        noise = np.array([level.noise for level in grid.before])
        assert (np.diff(noise) < 0).all()
        assert all(after.noise < before.noise for before, after in zip(grid.before, grid.after, strict=True))


@pytest.mark.parametrize(
    ("name", "sampler", "steps", "limit"),
    [
        ("demo", "euler", 0, "1 to 1000"),
        ("demo", "euler", -1, "1 to 1000"),
        ("demo", "heun", 1001, "1 to 1000"),
        ("sd3", "euler", 1001, "1 to 1000"),
        ("sd15", "dpmpp_2m", 1000, "can tell apart"),
        ("sd15", "ddim", 1000, "can tell apart"),
    ],
)
def test_steps_that_the_schedule_has_no_room_for_are_refused(
    name: str, sampler: SamplerName, steps: int, limit: str
) -> None:
    with pytest.raises(InvalidRequest, match=rf"steps = {steps}; limit: .*{limit}.*; fix: "):
        schedule_of(PUBLISHED[name]).grid(steps, sampler, 64)


def test_all_timesteps_of_training_can_be_visited() -> None:
    assert DEMO_SCHEDULE.grid(1000, "euler").timesteps == tuple(range(999, -1, -1))


def test_a_grid_asked_for_again_is_the_same_object() -> None:
    assert DEMO_SCHEDULE.grid(20, "heun") is DEMO_SCHEDULE.grid(20, "heun")
    assert DEMO_SCHEDULE.grid(20, "heun") is not DEMO_SCHEDULE.grid(20, "euler")


def test_flow_levels_lie_on_a_line_and_ddim_is_euler() -> None:
    schedule = schedule_of(PUBLISHED["sd3"])
    assert schedule.grid(8, "ddim").sampler == "euler"
    assert schedule.grid(8, "ddim").timesteps == schedule.grid(8, "euler").timesteps
    for level in schedule.grid(8, "heun").before:
        assert math.isclose(level.signal + level.noise, 1)


def test_larger_pictures_stay_longer_in_noise_where_the_schedule_is_dynamic() -> None:
    schedule = schedule_of(PUBLISHED["flux-dev"])
    middles = [schedule.grid(10, "euler", tokens).before[5].noise for tokens in (16, 256, 1024, 4096)]
    assert middles == sorted(middles) and middles[0] < middles[-1]
    assert math.isclose(middles[1], math.exp(0.5) / (math.exp(0.5) + 1), rel_tol=1e-6)  # of 0.5, at base_image_seq_len
    with pytest.raises(ValueError, match="latent_tokens must be given"):
        schedule.grid(10, "euler")


def test_schnell_takes_even_steps_from_pure_noise() -> None:
    assert schedule_of(PUBLISHED["flux-schnell"]).grid(4, "euler", 64).timesteps == (1000, 750, 500, 250)


def test_a_manifest_says_all_that_a_schedule_needs() -> None:
    manifest = DrawManifest.model_construct(scheduler=dict(FLUX_DEV), prediction="flow", family="flux")
    expected = schedule_of(PUBLISHED["flux-dev"]).grid(9, "dpmpp_2m", 256)
    assert NoiseSchedule.of(manifest).grid(9, "dpmpp_2m", 256).before == expected.before


@pytest.mark.parametrize(
    ("key", "value", "is_clipped"), [("clip_sample", True, False), ("clip_sample", False, False), ("other", 1, True)]
)
def test_estimates_are_clipped_only_by_ddim_and_only_where_the_config_says_nothing(
    key: str, value: object, is_clipped: bool
) -> None:
    """DDIMScheduler clips unless it is told not to; StableDiffusionPipeline turns an explicit yes into a no."""
    config = {**{name: given for name, given in DEMO.items() if name != "clip_sample"}, key: value}
    schedule = NoiseSchedule.from_config(config, "v_prediction", "unet")
    assert (schedule.grid(4, "ddim").clip == 1.0) == is_clipped
    assert [schedule.grid(4, sampler).clip for sampler in SAMPLERS if sampler != "ddim"] == [None] * 3


@pytest.mark.parametrize(
    ("config", "prediction"), [(DEMO, "v_prediction"), (SD3, "flow")], ids=["variance preserving", "flow"]
)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("_class_name", "LCMScheduler"),
        ("_class_name", ["DDIMScheduler"]),
        ("use_exponential_sigmas", True),
        ("use_beta_sigmas", True),
        ("num_train_timesteps", 0),
        ("num_train_timesteps", 10**9),
        ("num_train_timesteps", "1000"),
    ],
)
def test_what_no_schedule_can_do_is_refused_by_name(
    config: dict[str, Any], prediction: Prediction, key: str, value: object
) -> None:
    assert_refused({**config, key: value}, prediction, key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_lu_lambdas", True),
        ("use_flow_sigmas", True),
        ("thresholding", True),
        ("interpolation_type", "log_linear"),
        ("timestep_type", "continuous"),
        ("variance_type", "learned_range"),
        ("lambda_min_clipped", -5.1),
        ("beta_schedule", "exp"),
        ("beta_start", 0.0),
        ("beta_start", math.nan),
        ("beta_end", 1.0),
        ("beta_end", 1e-5),
        ("trained_betas", [0.1, 0.2]),
        ("trained_betas", [0.1] * 999 + [1.0]),
        ("timestep_spacing", "random"),
        ("use_karras_sigmas", "yes"),
        ("final_sigmas_type", "one"),
        ("_class_name", "FlowMatchEulerDiscreteScheduler"),
    ],
)
def test_what_a_variance_preserving_schedule_cannot_do_is_refused_by_name(key: str, value: object) -> None:
    assert_refused({**DEMO, key: value}, "v_prediction", key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_karras_sigmas", True),
        ("invert_sigmas", True),
        ("stochastic_sampling", True),
        ("shift_terminal", 0.02),
        ("time_shift_type", "linear"),
        ("shift", 0.0),
        ("max_image_seq_len", 256),
        ("_class_name", "DPMSolverMultistepScheduler"),
    ],
)
def test_what_a_flow_schedule_cannot_do_is_refused_by_name(key: str, value: object) -> None:
    assert_refused({**SD3, key: value}, "flow", key, value)


def test_a_noise_prediction_of_pure_noise_is_refused() -> None:
    assert_refused({**DEMO, "rescale_betas_zero_snr": True}, "epsilon", "rescale_betas_zero_snr", True)


def assert_refused(config: dict[str, Any], prediction: Prediction, key: str, value: object) -> None:
    family: Family = "sd3" if prediction == "flow" else "unet"
    with pytest.raises(UnsupportedCheckpoint) as refusal:
        schedule_of(Case(config=config, prediction=prediction, family=family))
    assert str(refusal.value).startswith(f"unsupported_checkpoint: scheduler_config.json: {key} = ")
    assert "; limit: " in str(refusal.value) and "; fix: " in str(refusal.value)
    assert key != "_class_name" or str(value)[:8] in str(refusal.value)


def test_null_counts_as_absent() -> None:
    """An exporter's JSON has null for minus infinity."""
    config = {**DEMO, "lambda_min_clipped": None, "sigma_min": None, "variance_type": None, "trained_betas": None}
    assert NoiseSchedule.from_config(config, "v_prediction", "unet").grid(3, "euler").timesteps == (999, 666, 332)
