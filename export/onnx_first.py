"""The ONNX files of a checkpoint, which engines and programs are made from: exported where they are not there."""

from __future__ import annotations

from pathlib import Path

from export.checkpoint import read_checkpoint
from export.diffusion_checkpoint import is_draw_checkpoint, read_draw_checkpoint
from export.diffusion_repository import DRAW_DEMO, export_draw_checkpoint
from export.repository import DEMO, Progress, choose_layout, export_checkpoint
from proteus.deployment import DeploymentError
from proteus.engines import EngineStage, graph_path
from proteus.manifest import DrawManifest, Manifest

READING: tuple[EngineStage, ...] = ("vision_encoder", "connector")
DRAWING: tuple[EngineStage, ...] = ("text_encoder", "denoiser", "vae_decoder")


def stages_of(folder: Path) -> tuple[EngineStage, ...]:
    """The stages that a checkpoint of its layout has."""
    return DRAWING if is_draw_checkpoint(folder) else READING


def exported(folder: Path, out: Path | None, progress: Progress) -> Path:
    """The deployment file that serves the checkpoint; raises as an export does."""
    draws = is_draw_checkpoint(folder)
    layout = choose_layout(DRAW_DEMO if draws else DEMO, folder, out)
    deployment, repository = layout.root / layout.deployment, layout.root / layout.repository
    progress("looking for the ONNX files")
    checkpoint = read_draw_checkpoint(folder) if draws else read_checkpoint(folder)
    there = all(graph_path(repository, stage).exists() for stage in stages_of(folder)) and deployment.exists()
    if not there or _revision(repository, draws=draws) != checkpoint.revision():
        (export_draw_checkpoint if draws else export_checkpoint)(folder, out, progress=progress)
    return deployment


def _revision(repository: Path, *, draws: bool) -> str | None:
    """Of the checkpoint that was exported; None where nothing of this version was."""
    try:
        return (DrawManifest if draws else Manifest).load(repository).revision
    except DeploymentError:
        return None
