"""Every latent and estimate on the way from noise, as diffusers' schedulers have them on the same config and model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from proteus.limits import SamplerName
from proteus.manifest import Prediction
from tests.generation.schedulers import DEMO, PUBLISHED, SAMPLERS, SD3, SD15, Case, draw, random_noise

pytestmark = pytest.mark.oracle
TOLERANCE = 2e-5  # of the largest latent, by the CPU: 1.1e-5 was the most seen. Rounding to float32 moves both by 1e-4
SPACINGS = ("linspace", "leading", "trailing")
PREDICTIONS: tuple[Prediction, ...] = ("epsilon", "v_prediction", "sample")


def assert_equal_runs(case: Case, sampler: SamplerName, steps: int, *, starts_large: bool = False) -> None:
    """`starts_large`: diffusers holds latents of thousands, whose rounding reaches into the picture."""
    from tests.generation import reference

    noise = random_noise()
    ours, theirs = draw(case, sampler, steps, noise), reference.draw(case, sampler, steps, noise)
    np.testing.assert_allclose(ours.timesteps, theirs.timesteps, atol=2e-4)
    np.testing.assert_allclose(ours.first, theirs.first, rtol=1e-6)
    held = [*theirs.latents, *([theirs.first] if starts_large else [])]
    allowed = TOLERANCE * max(1.0, *(float(np.abs(latent).max()) for latent in held))
    np.testing.assert_allclose(ours.latents, theirs.latents, rtol=0, atol=allowed)
    if theirs.cleans:
        np.testing.assert_allclose(ours.cleans, theirs.cleans, rtol=0, atol=allowed)


@pytest.mark.parametrize("steps", [1, 2, 4, 20, 50])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_draw_as_in_diffusers(name: str, sampler: SamplerName, steps: int) -> None:
    assert_equal_runs(PUBLISHED[name], sampler, steps)


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_spacing_and_prediction_draws_as_in_diffusers(
    sampler: SamplerName, spacing: str, prediction: Prediction
) -> None:
    case = Case(config={**SD15, "timestep_spacing": spacing}, prediction=prediction, family="unet")
    for steps in (3, 7, 30):
        assert_equal_runs(case, sampler, steps)


VARIATIONS: Mapping[str, Mapping[str, Any]] = {
    "karras": {"use_karras_sigmas": True},
    "karras between given ends": {"use_karras_sigmas": True, "sigma_min": 0.1, "sigma_max": 12.0},
    "karras, cosine": {"use_karras_sigmas": True, "beta_schedule": "squaredcos_cap_v2"},
    "karras, trailing": {"use_karras_sigmas": True, "timestep_spacing": "trailing"},
    "linear": {"beta_schedule": "linear"},
    "default betas": {"beta_schedule": "linear", "beta_start": None, "beta_end": None},
    "cosine": {"beta_schedule": "squaredcos_cap_v2"},
    "trained": {"trained_betas": np.linspace(1e-4, 0.03, 1000).tolist()},
    "another length": {"num_train_timesteps": 400},
    "last sigma not 0": {"final_sigmas_type": "sigma_min"},
    "ends at 1": {"set_alpha_to_one": True},
    "clips by default": {"clip_sample": None},
    "clips wider": {"clip_sample": None, "clip_sample_range": 2.5},
}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("name", VARIATIONS)
def test_what_a_config_can_ask_for_draws_as_in_diffusers(name: str, sampler: SamplerName) -> None:
    config = {key: value for key, value in {**SD15, **VARIATIONS[name]}.items() if value is not None}
    for prediction in PREDICTIONS:
        for steps in (4, 20):
            case = Case(config=config, prediction=prediction, family="unet")
            assert_equal_runs(case, sampler, steps, starts_large="cosine" in name)


@pytest.mark.parametrize("prediction", ["v_prediction", "sample"])
@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_schedules_that_end_in_pure_noise_draw_as_in_diffusers(
    sampler: SamplerName, spacing: str, prediction: Prediction
) -> None:
    config = {**DEMO, "rescale_betas_zero_snr": True, "timestep_spacing": spacing, "steps_offset": 1}
    for steps in (1, 4, 20):
        case = Case(config=config, prediction=prediction, family="unet")
        assert_equal_runs(case, sampler, steps, starts_large=True)


@pytest.mark.parametrize("latent_tokens", [16, 256, 1024, 4096])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("family", ["sd3", "flux"])
def test_flow_schedules_are_shifted_by_size_as_in_diffusers(
    family: Any, sampler: SamplerName, latent_tokens: int
) -> None:
    config = {**PUBLISHED["flux-dev"].config, "base_shift": 0.3, "max_shift": 1.3}
    assert_equal_runs(Case(config=config, prediction="flow", family=family, latent_tokens=latent_tokens), sampler, 9)


@pytest.mark.parametrize("shift", [0.5, 1.0, 1.15, 6.0])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("family", ["sd3", "flux"])
def test_flow_schedules_are_shifted_as_in_diffusers(family: Any, sampler: SamplerName, shift: float) -> None:
    for steps in (1, 5, 28):
        assert_equal_runs(Case(config={**SD3, "shift": shift}, prediction="flow", family=family), sampler, steps)


@pytest.mark.parametrize("sampler", ["euler", "ddim", "heun", "dpmpp_2m"])
def test_of_61_trailing_steps_diffusers_makes_62_and_ours_are_its_first(sampler: SamplerName) -> None:
    """An even stride of 1000 / 61 is rounded so that one more fits: timestep -1, which no model was trained on."""
    from tests.generation import reference

    theirs = reference.scheduler_of(PUBLISHED["demo"], sampler, 61).timesteps.tolist()
    ours = draw(PUBLISHED["demo"], sampler, 61, random_noise()).timesteps
    assert theirs[-1] == -1
    assert ours == theirs[: len(ours)]
    assert len(ours) == (121 if sampler == "heun" else 61)
