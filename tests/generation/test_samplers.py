"""Samplers against pictures that are known: a model that is always right must lead to what it knows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from proteus.cost.draw import evaluations_of
from proteus.generation.samplers import Sampler, Trajectory
from proteus.generation.task import Floats
from proteus.limits import SamplerName
from proteus.manifest import Prediction
from tests.generation.schedulers import (
    DEMO,
    FLUX_SCHNELL,
    PUBLISHED,
    SAMPLERS,
    SD3,
    Case,
    draw,
    random_noise,
    schedule_of,
)

PREDICTIONS: tuple[Prediction, ...] = ("epsilon", "v_prediction", "sample")


def start(sampler: SamplerName, steps: int, seed: int = 1, case: Case = PUBLISHED["demo"]) -> Trajectory:
    return Sampler(schedule_of(case).grid(steps, sampler, case.latent_tokens)).start(random_noise(seed))


def draw_knowing(clean: Floats, picture: Trajectory, prediction: Prediction) -> Floats:
    """With the exact prediction for `clean` at every evaluation, by the definitions of the predictions."""
    betas = np.linspace(0.00085**0.5, 0.02**0.5, 1000) ** 2
    alphas = np.cumprod(1 - betas)
    while picture.evaluations_left:
        given, timestep = picture.model_input().astype(np.float64), picture.timestep
        if prediction == "flow":
            answer = (given - clean) * 1000 / timestep
        else:
            signal, noise = alphas[int(timestep)] ** 0.5, (1 - alphas[int(timestep)]) ** 0.5
            epsilon = (given - signal * clean) / noise
            answer = {"epsilon": epsilon, "v_prediction": signal * epsilon - noise * clean, "sample": clean}[prediction]
        picture.advance(answer.astype(np.float32))
        np.testing.assert_allclose(picture.clean, clean, atol=2e-4)
    return picture.latent


@pytest.mark.parametrize("prediction", PREDICTIONS)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("steps", [1, 2, 5, 20])
def test_a_model_that_knows_the_picture_draws_it(sampler: SamplerName, prediction: Prediction, steps: int) -> None:
    clean = 0.8 * random_noise(5)
    picture = start(sampler, steps, case=Case(config=DEMO, prediction=prediction, family="unet"))
    # DDIM of diffusers ends at the first timestep of training, not at 0, where the steps do not begin at a multiple.
    tolerance = 0.1 if sampler == "ddim" else 2e-5
    np.testing.assert_allclose(draw_knowing(clean, picture, prediction), clean, atol=tolerance)


@pytest.mark.parametrize("config", [SD3, FLUX_SCHNELL], ids=["sd3", "schnell"])
@pytest.mark.parametrize("sampler", ["euler", "ddim", "heun"])
@pytest.mark.parametrize("steps", [1, 2, 5, 20])
def test_a_flow_model_that_knows_the_picture_draws_it(
    config: dict[str, object], sampler: SamplerName, steps: int
) -> None:
    clean = 0.8 * random_noise(5)
    picture = start(sampler, steps, case=Case(config=config, prediction="flow", family="flux"))
    np.testing.assert_allclose(draw_knowing(clean, picture, "flow"), clean, atol=2e-5)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("steps", [1, 2, 3, 20])
def test_a_picture_counts_its_steps_and_evaluations(sampler: SamplerName, steps: int) -> None:
    picture, total = start(sampler, steps), evaluations_of(sampler, steps)
    seen = []
    for left in range(total, 0, -1):
        assert picture.evaluations_left == left
        seen.append(picture.step)
        picture.advance(random_noise(left))
    assert (picture.evaluations_left, picture.step) == (0, steps)
    per_step = 2 if sampler == "heun" else 1
    assert seen == [made // per_step for made in range(total)]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_heun_alone_asks_twice_at_a_level(sampler: SamplerName) -> None:
    run = draw(PUBLISHED["demo"], sampler, 4, random_noise())
    once = [999.0, 749.0, 499.0, 249.0]
    assert run.timesteps == (once[:1] + [each for each in once[1:] for _ in range(2)] if sampler == "heun" else once)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_arrays_given_out_are_never_written_to_again(sampler: SamplerName) -> None:
    picture = start(sampler, 4)
    given: list[tuple[Floats, Floats]] = []
    while picture.evaluations_left:
        given += [(array, array.copy()) for array in (picture.model_input(), picture.latent, picture.clean)]
        picture.advance(random_noise(len(given)))
    for array, copy in given:
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize(("first", "second"), [*itertools.product(SAMPLERS, SAMPLERS)])
def test_pictures_that_take_turns_are_what_they_are_alone(first: SamplerName, second: SamplerName) -> None:
    def turn(picture: Trajectory) -> None:
        if picture.evaluations_left:
            picture.advance(np.tanh(picture.model_input()) * np.float32(picture.timestep / 1000))

    alone = [start(first, 7, seed=1), start(second, 4, seed=2)]
    for picture in alone:
        while picture.evaluations_left:
            turn(picture)
    together = [start(first, 7, seed=1), start(second, 4, seed=2)]
    while any(picture.evaluations_left for picture in together):
        for picture in together:
            turn(picture)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one.latent, other.latent)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_all_arrays_are_float32(name: str, sampler: SamplerName) -> None:
    picture = start(sampler, 3, case=PUBLISHED[name])
    while picture.evaluations_left:
        assert picture.model_input().dtype == np.float32
        picture.advance(random_noise(3))
        assert (picture.latent.dtype, picture.clean.dtype) == (np.float32, np.float32)
