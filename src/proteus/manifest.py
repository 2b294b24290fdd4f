"""What the exporter wrote about the ONNX files of one checkpoint: `llm/1/export.json` of a model repository, and
`denoiser/1/export.json` of one that draws.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from proteus.deployment import DeploymentError

MANIFEST = Path("llm") / "1" / "export.json"
FORMAT = 2  # since 2 the language model is one graph, from ids to logits
DRAW_MANIFEST = Path("denoiser") / "1" / "export.json"
DRAW_FORMAT = 1
Prediction = Literal["epsilon", "v_prediction", "sample", "flow"]
_Kind = TypeVar("_Kind", bound="_Written")


class _Written(BaseModel):
    """The facts that serving needs; the exporter writes more (versions, parity), which is for people."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int


class Manifest(_Written):
    """A vision-language checkpoint."""

    revision: str  # SHA-256 of the checkpoint's weights and config, hex
    image_size: int  # px
    visual_tokens: int  # of one picture
    hidden_size: int
    vocab_size: int
    context_tokens: int

    @classmethod
    def load(cls, repository: Path) -> Self:
        """Read the manifest of a model repository; raises DeploymentError naming the file and the fix."""
        return _load(cls, repository / MANIFEST, FORMAT)


class TextInput(BaseModel):
    """One `input_ids` of the text encoder and the tokenizer that makes it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    tensor: str  # `input_ids`, `input_ids_2`, …
    folder: str  # of tokenizer.json, relative to the checkpoint
    tokens: int  # always so many: longer prompts are refused, shorter ones padded
    pad_id: int


class DrawManifest(_Written):
    """A text-to-image checkpoint in the diffusers layout. Z latent channels, E and P widths of states and pooled."""

    revision: str  # SHA-256 of the checkpoint's weights and config, hex
    family: Literal["unet", "sd3", "flux"]
    text_inputs: list[TextInput]
    text_tokens: int  # T: rows of text states
    text_width: int  # E
    pooled_width: int  # P; 0: none
    latent_channels: int  # Z
    vae_factor: int  # px a latent, along each side
    size_multiple: int  # latents: sides are multiples of it
    max_side: int | None = None  # latents: the last position that the denoiser knows; None: any
    prediction: Prediction
    scheduler: dict[str, Any]  # the checkpoint's scheduler_config.json
    embedded_guidance: bool  # guidance is an input of the denoiser, and there is one branch (distilled Flux)
    preview: list[list[float]]  # (Z + 1, 3): clean latent, and 1, to RGB in 0…1; least squares

    @classmethod
    def load(cls, repository: Path) -> Self:
        """Read the manifest of a model repository; raises DeploymentError naming the file and the fix."""
        return _load(cls, repository / DRAW_MANIFEST, DRAW_FORMAT)


def _load(kind: type[_Kind], path: Path, wanted_format: int) -> _Kind:
    try:
        manifest = kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DeploymentError(
            f"{path} cannot be read ({error.strerror})", fix="export the checkpoint: make export CHECKPOINT=folder"
        ) from error
    except ValidationError as error:
        names = ", ".join(".".join(map(str, problem["loc"])) or "the document" for problem in error.errors())
        raise DeploymentError(f"{path}: {names} missing or wrong", fix="export the checkpoint again") from error
    if manifest.format != wanted_format:
        raise DeploymentError(
            f"{path} has format {manifest.format}", limit=f"format = {wanted_format}", fix="export the checkpoint again"
        )
    return manifest
