"""Optimization profiles of every stage, from the deployment file and what was exported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from proteus.deployment import DeploymentError
from proteus.engines import STAGES, EngineStage
from proteus.limits import DrawLimits
from proteus.profiles import MAX_PROFILES, Profile, fitting, profiles_of, sizes_of
from tests.changed_deployment import changed

SQUARES = {"draw.max_side_px": 128, "draw.max_pixels": 16_384}


def latents(*sizes: tuple[int, int, int]) -> tuple[tuple[int, ...], ...]:
    """Rows, height and width of min, opt and max."""
    return tuple((rows, 8, height, width) for rows, height, width in sizes)


@pytest.mark.parametrize(
    ("stage", "shapes"),
    [
        ("vision_encoder", {"pixel_values": ((1, 3, 96, 96), (8, 3, 96, 96), (8, 3, 96, 96))}),
        ("connector", {"image_features": ((1, 36, 192), (8, 36, 192), (8, 36, 192))}),
        ("text_encoder", {"input_ids": ((1, 48), (8, 48), (8, 48)), "cache_key": ((1, 32), (8, 32), (8, 32))}),
    ],
)
def test_a_stage_with_one_shape_has_one_profile_for_its_batches(stage: EngineStage, shapes: dict[str, Any]) -> None:
    assert profiles_of(changed({}), stage) == (Profile(name="fixed", shapes=shapes),)


@pytest.mark.parametrize(
    ("changes", "names", "last"),
    [
        ({}, ["64x64", "96x64", "64x96", "96x96"], latents((1, 12, 12), (8, 12, 12), (16, 12, 12))),
        ({"gpu.sizes": ["96x64"]}, ["96x64", "any"], latents((1, 8, 8), (8, 8, 8), (16, 12, 12))),
        (
            {"gpu.sizes": ["96x96", "64x64", "64x96", "96x64"]},
            ["96x96", "64x64", "64x96", "96x64"],
            latents((1, 8, 12), (8, 8, 12), (16, 8, 12)),
        ),
        (
            {"denoiser.max_rows": 2},
            ["64x64", "96x64", "64x96", "96x96"],
            latents((1, 12, 12), (2, 12, 12), (2, 12, 12)),
        ),
        (
            {"draw.default_size": "96x64", "gpu.sizes": ["64x64"]},
            ["64x64", "any"],
            latents((1, 8, 8), (8, 8, 12), (16, 12, 12)),
        ),
        (SQUARES, ["64x64", "96x64", "128x64", "64x96", "96x96", "128x96", "64x128", "96x128", "128x128"], None),
        (
            {"draw.max_pixels": 6_144, "draw.min_side_px": 40},
            ["64x64", "96x64", "64x96"],
            latents((1, 12, 8), (8, 12, 8), (16, 12, 8)),
        ),
    ],
)
def test_a_stage_that_draws_has_a_profile_for_each_size_in_a_fixed_order(
    changes: Mapping[str, Any], names: list[str], last: tuple[tuple[int, ...], ...] | None
) -> None:
    profiles = profiles_of(changed(changes), "denoiser")
    assert [profile.name for profile in profiles] == names
    assert last is None or profiles[-1].shapes["latents"] == last
    assert [profile.name for profile in profiles_of(changed(changes), "vae_decoder")] == names


def test_all_inputs_of_the_denoiser_have_the_same_rows() -> None:
    for profile in profiles_of(changed({}), "denoiser"):
        assert set(profile.shapes) == {"latents", "timestep", "text_states"}
        assert {tuple(dims[0] for dims in span) for span in profile.shapes.values()} == {(1, 8, 16)}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("changes", [{}, {"gpu.sizes": ["96x64"]}, {"denoiser.max_rows": 3}])
def test_every_profile_is_ordered_and_its_largest_batch_is_that_of_the_deployment(
    stage: EngineStage, changes: Mapping[str, Any]
) -> None:
    deployment = changed(changes)
    most = deployment.drawing.denoiser.max_rows if stage == "denoiser" else getattr(deployment.stages, stage).max_batch
    for profile in profiles_of(deployment, stage):
        for least, best, largest in profile.shapes.values():
            assert all(low <= mid <= high for low, mid, high in zip(least, best, largest, strict=True))
            assert (least[0], largest[0]) == (1, most)


def test_every_size_that_may_be_asked_for_has_a_profile_that_takes_it() -> None:
    for changes in ({}, SQUARES, {"gpu.sizes": ["96x64"]}, SQUARES | {"gpu.sizes": ["64x64", "128x128"]}):
        deployment = changed(changes)
        profiles = profiles_of(deployment, "vae_decoder")
        for width, height in sizes_of(deployment.drawing.limits):
            number = fitting(profiles, {"latents": (3, 8, height // 8, width // 8)})
            assert number is not None
            assert profiles[number].name in (f"{width}x{height}", "any")
        assert fitting(profiles, {"latents": (9, 8, 8, 8)}) is None
        assert fitting(profiles, {"latents": (1, 8, 8)}) is None
        assert fitting(profiles, {"latent": (1, 8, 8, 8)}) is None


def test_sizes_are_multiples_within_the_limits() -> None:
    limits: DrawLimits = changed(SQUARES | {"draw.min_side_px": 40, "draw.max_pixels": 8_192}).drawing.limits
    assert sizes_of(limits) == ((64, 64), (96, 64), (128, 64), (64, 96), (64, 128))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"draw.max_side_px": 192, "draw.max_pixels": 36_864},
            [
                "25 sizes",
                "25 optimization profiles",
                f"limit: {MAX_PROFILES} profiles",
                "gpu.sizes",
                "one more profile",
            ],
        ),
        ({"gpu.sizes": ["64x64", "64x64"]}, ["gpu.sizes has 64x64", "each one once"]),
        ({"gpu.sizes": ["128x64"]}, ["gpu.sizes has 128x64", "max_side_px"]),
        ({"gpu.sizes": ["65x64"]}, ["gpu.sizes has 65x64", "side_multiple_px"]),
    ],
)
def test_sizes_that_cannot_be_profiles_are_refused_with_the_fix(changes: Mapping[str, Any], words: list[str]) -> None:
    with pytest.raises(DeploymentError) as refused:
        profiles_of(changed(changes), "denoiser")
    assert [word for word in words if word not in str(refused.value)] == []


def test_so_many_sizes_as_there_may_be_profiles_are_taken_and_one_more_is_not() -> None:
    many = {"draw.max_side_px": 160, "draw.max_pixels": 25_600}
    assert len(profiles_of(changed(many), "denoiser")) == 16
    names = [f"{width}x{height}" for width, height in sizes_of(changed(many).drawing.limits)]
    fifteen = profiles_of(changed(many | {"gpu.sizes": names[:15]}), "denoiser")
    assert (len(fifteen), fifteen[-1].name) == (16, "any")
