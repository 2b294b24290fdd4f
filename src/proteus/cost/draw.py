"""What drawing a picture costs: latent tokens, denoiser evaluations, token passes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from proteus.cost.vector import ResourceVector
from proteus.errors import InvalidRequest
from proteus.families.checkpoint import ConfigTable, UnsupportedCheckpoint, read_table
from proteus.limits import SamplerName
from proteus.manifest import DrawManifest

FOLDED = 2  # latents a token, along each side, of the transformers that draw


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentGrid:
    """How a diffusion checkpoint sees pixels: `vae_factor` px a latent, `patch` latents a token, along each side."""

    vae_factor: int = 8
    patch: int = 2

    @classmethod
    def from_manifest(cls, manifest: DrawManifest) -> LatentGrid:
        """That of an exported checkpoint."""
        return cls(vae_factor=manifest.vae_factor, patch=1 if manifest.family == "unet" else FOLDED)

    @classmethod
    def from_checkpoint(cls, folder: Path) -> LatentGrid:
        """Read a folder in the diffusers layout; raises UnsupportedCheckpoint."""
        vae = read_table(folder / "vae" / "config.json")
        blocks = vae.get("block_out_channels")
        if not isinstance(blocks, list) or not blocks:
            raise vae.wrong("block_out_channels", blocks, "a list of widths, one for each halving and one more")
        for name in ("transformer", "unet"):
            if (folder / name / "config.json").exists():
                table = read_table(folder / name / "config.json")
                return cls(vae_factor=2 ** (len(blocks) - 1), patch=_patch(name, table))
        raise UnsupportedCheckpoint(
            f"{folder} holds no denoiser", limit="transformer/ or unet/", fix="give a full folder"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawCost:
    """Cost of one picture."""

    latent_tokens: int  # N_z
    steps: int
    branches: int  # guidance branches: 1 without guidance, 2 with
    evaluations: int  # NFE = evaluations of the sampler · branches: rows of the denoiser's batches
    token_passes: int  # N_z · NFE

    def resources(self, *, images: int, text_tokens: int = 0) -> ResourceVector:
        """Of one request for so many pictures; the text of all branches is encoded once."""
        return ResourceVector(
            requests=1,
            text_tokens=text_tokens,
            images=images,
            evaluations=images * self.evaluations,
            token_passes=images * self.token_passes,
        )


def evaluations_of(sampler: SamplerName, steps: int) -> int:
    """Evaluations of one branch. Heun corrects every step but the last with a second one."""
    return 2 * steps - 1 if sampler == "heun" else steps


def plan_draw(
    width_px: int, height_px: int, *, steps: int, branches: int, grid: LatentGrid, sampler: SamplerName = "euler"
) -> DrawCost:
    """N_z = ⌈H/(f·p)⌉ · ⌈W/(f·p)⌉ (design.md §4); raises InvalidRequest for numbers below one."""
    named = {"width": width_px, "height": height_px, "steps": steps, "branches": branches}
    for name, value in named.items():
        if value < 1:
            raise InvalidRequest(f"{name} = {value}", limit="1 or more", fix="give a whole number above 0")
    cell_px = grid.vae_factor * grid.patch
    latent_tokens = -(-height_px // cell_px) * -(-width_px // cell_px)
    evaluations = evaluations_of(sampler, steps) * branches
    return DrawCost(
        latent_tokens=latent_tokens,
        steps=steps,
        branches=branches,
        evaluations=evaluations,
        token_passes=latent_tokens * evaluations,
    )


def _patch(name: str, table: ConfigTable) -> int:
    """A UNet works on the latents themselves; Flux folds 2 x 2 latents before its patch of 1."""
    if name == "unet":
        return 1
    folded = 2 if table.get("_class_name") == "FluxTransformer2DModel" else 1
    return table.positive("patch_size", 2 if folded == 1 else 1) * folded
