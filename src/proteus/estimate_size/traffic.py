"""The traffic file of `proteus size`: who asks for what how often, on which GPU, and how fast one was seen to be."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from proteus.deployment import DeploymentError
from proteus.limits import Count, NotNegative, SamplerName, Section

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)]
Share = Annotated[float, Field(ge=0, lt=1, strict=False)]
Size = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,5}x[1-9][0-9]{0,5}$")]
MIB = 1 << 20


class GpuMemory(Section):
    """One GPU. What cannot be known beforehand is assumed unless it is stated."""

    memory_mib: Count = Field(description="as nvidia-smi prints it")
    context_mib: NotNegative = Field(default=500, description="of each process that opens the GPU, before any model")
    activation_mib: NotNegative = Field(
        default=2048, description="of each pool: activations and workspaces of its engines"
    )


class Measured(Section):
    """Of one such GPU, at the batch sizes of the deployment. What is left out gives no number of pods."""

    encode_pictures_per_s: Rate | None = Field(default=None, description="vision encoder and connector")
    prefill_tokens_per_s: Rate | None = Field(default=None, description="prompt tokens, of the language model alone")
    decode_tokens_per_s: Rate | None = Field(default=None, description="of all slots together")
    denoise_evaluations_per_s: Rate | None = Field(default=None, description="rows of the denoiser's batches")
    tflops: Rate | None = Field(default=None, description="that the GPU reaches at most; gives only a lower bound")


class Requests(Section):
    """One kind of request: to read, or with `draw`, to draw."""

    name: str = "requests"
    per_s: Rate
    text_tokens: NotNegative = 0
    output_tokens: NotNegative = Field(default=0, description="on the average, not the most that may be")
    pictures: list[Size] = []
    draw: Size | None = None
    images: Count = 1
    steps: Count = 20
    guidance: Annotated[float, Field(ge=1, allow_inf_nan=False, strict=False)] = 1.0
    sampler: SamplerName = "euler"

    @model_validator(mode="after")
    def reads_or_draws(self) -> Self:
        if self.draw is not None and (self.pictures or self.text_tokens or self.output_tokens):
            raise ValueError("draw goes with images, steps, guidance and sampler alone")
        return self


class Traffic(Section):
    """The whole file. `load` is the way in."""

    gpu: GpuMemory
    measured: Measured = Measured()
    utilisation: Annotated[float, Field(gt=0, le=1, strict=False)] = Field(
        default=0.6, description="that a pod is planned for"
    )
    cached_pictures: Share = Field(default=0.0, description="share of pictures that the encoder cache has")
    requests: list[Requests] = []

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises DeploymentError naming file and key."""
        fix = "docs/runbook.md shows a whole file"
        try:
            return cls.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise DeploymentError(f"{path} cannot be read ({error.strerror})", fix=fix) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise DeploymentError(f"{path} is not TOML ({error})", fix=fix) from error
        except ValidationError as error:
            told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            raise DeploymentError(f"{path}: {told}", fix=fix) from error
