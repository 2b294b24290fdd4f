"""What the exporter wrote about the ONNX files of one checkpoint: `llm/1/export.json` of a model repository."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from proteus.deployment import DeploymentError

MANIFEST = Path("llm") / "1" / "export.json"
FORMAT = 2  # since 2 the language model is one graph, from ids to logits


class Manifest(BaseModel):
    """The facts that serving needs; the exporter writes more (versions, parity), which is for people."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int
    revision: str  # SHA-256 of the checkpoint's weights and config, hex
    image_size: int  # px
    visual_tokens: int  # of one picture
    hidden_size: int
    vocab_size: int
    context_tokens: int

    @classmethod
    def load(cls, repository: Path) -> Manifest:
        """Read the manifest of a model repository; raises DeploymentError naming the file and the fix."""
        path = repository / MANIFEST
        try:
            manifest = cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise DeploymentError(
                f"{path} cannot be read ({error.strerror})", fix="export the checkpoint: make export CHECKPOINT=folder"
            ) from error
        except ValidationError as error:
            names = ", ".join(".".join(map(str, problem["loc"])) or "the document" for problem in error.errors())
            raise DeploymentError(f"{path}: {names} missing or wrong", fix="export the checkpoint again") from error
        if manifest.format != FORMAT:
            raise DeploymentError(
                f"{path} has format {manifest.format}", limit=f"format = {FORMAT}", fix="export the checkpoint again"
            )
        return manifest
