from __future__ import annotations

import json
from pathlib import Path

import pytest

from proteus.cost.draw import LatentGrid, evaluations_of, plan_draw
from proteus.cost.vector import ResourceVector
from proteus.errors import InvalidRequest
from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.limits import SamplerName


@pytest.mark.parametrize(
    ("size", "grid", "latent_tokens"),
    [
        ((512, 512), LatentGrid(vae_factor=8, patch=1), 4096),  # SD-1.5: 64 x 64 latents
        ((1024, 1024), LatentGrid(vae_factor=8, patch=2), 4096),  # SD3, Flux: 64 x 64 tokens
        ((513, 512), LatentGrid(vae_factor=8, patch=1), 65 * 64),  # a pixel more is a column more
        ((1, 1), LatentGrid(vae_factor=8, patch=2), 1),
    ],
)
def test_latent_tokens_are_the_cells_that_cover_the_picture(
    size: tuple[int, int], grid: LatentGrid, latent_tokens: int
) -> None:
    cost = plan_draw(*size, steps=20, branches=2, grid=grid)
    assert (cost.latent_tokens, cost.evaluations, cost.token_passes) == (latent_tokens, 40, 40 * latent_tokens)


@pytest.mark.parametrize(
    ("sampler", "steps", "evaluations"),
    [("euler", 20, 20), ("ddim", 1, 1), ("dpmpp_2m", 50, 50), ("heun", 20, 39), ("heun", 1, 1)],
)
def test_a_sampler_evaluates_so_often(sampler: SamplerName, steps: int, evaluations: int) -> None:
    cost = plan_draw(64, 64, steps=steps, branches=2, grid=LatentGrid(patch=1), sampler=sampler)
    assert (evaluations_of(sampler, steps), cost.evaluations) == (evaluations, 2 * evaluations)


def test_a_request_reserves_for_all_its_pictures() -> None:
    cost = plan_draw(64, 96, steps=20, branches=2, grid=LatentGrid(patch=1))
    assert cost.resources(images=3, text_tokens=17) == ResourceVector(
        requests=1, images=3, text_tokens=17, evaluations=3 * 40, token_passes=3 * 40 * 8 * 12
    )


@pytest.mark.parametrize(("steps", "branches"), [(0, 1), (1, 0), (-3, 2)])
def test_nothing_is_drawn_in_no_steps(steps: int, branches: int) -> None:
    with pytest.raises(InvalidRequest, match="limit: 1 or more"):
        plan_draw(64, 64, steps=steps, branches=branches, grid=LatentGrid())


@pytest.mark.parametrize(
    ("denoiser", "config", "grid"),
    [
        ("unet", {"_class_name": "UNet2DConditionModel"}, LatentGrid(vae_factor=8, patch=1)),
        ("transformer", {"_class_name": "SD3Transformer2DModel", "patch_size": 2}, LatentGrid(vae_factor=8, patch=2)),
        ("transformer", {"_class_name": "FluxTransformer2DModel", "patch_size": 1}, LatentGrid(vae_factor=8, patch=2)),
    ],
)
def test_the_grid_is_read_from_a_diffusers_folder(
    tmp_path: Path, denoiser: str, config: dict[str, object], grid: LatentGrid
) -> None:
    for name, table in (("vae", {"block_out_channels": [128, 256, 512, 512]}), (denoiser, config)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(table))
    assert LatentGrid.from_checkpoint(tmp_path) == grid


def test_a_folder_without_denoiser_is_named(tmp_path: Path) -> None:
    (tmp_path / "vae").mkdir()
    (tmp_path / "vae" / "config.json").write_text('{"block_out_channels": [4]}')
    with pytest.raises(UnsupportedCheckpoint, match="holds no denoiser"):
        LatentGrid.from_checkpoint(tmp_path)
