"""One typed deployment file: every limit, instance count and path of a fleet, read once at the edge.

Paths in the file are relative to the file. Everything else receives plain values from here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from proteus.contract import ENCODER_MODELS, MODELS
from proteus.contract_draw import DRAW_MODELS
from proteus.errors import ProteusError
from proteus.limits import Count, Denoiser, DrawLimits, LimitTables, Section
from proteus.limits_cache import EncoderCache, MediaCache
from proteus.limits_gateway import Gateway
from proteus.limits_gpu import EncoderPool, Gpu

Pool = Literal["all", "encoder", "language", "draw"]


class DeploymentError(ProteusError):
    """The deployment file cannot be used; the text names file, key, value and fix. Stops the start."""

    code = "invalid_deployment"


class Stage(Section):
    """Batching and instances of one stage; `threads` are those of one instance."""

    instances: Count
    threads: Count = 1
    max_batch: Count
    max_queue_delay_us: Annotated[int, Field(ge=0)]
    max_queue: Count
    nice: Annotated[int, Field(ge=0, le=19)] = 0  # of its processes: what has 0 gets the cores first


class Stages(Section):
    image_preprocess: Stage
    vision_encoder: Stage
    connector: Stage
    text_encoder: Stage | None = None
    vae_decoder: Stage | None = None

    def given(self) -> Iterator[tuple[str, Stage]]:
        """(name, stage) of every stage that the file names."""
        return ((name, stage) for name, stage in self if stage is not None)


class TextEncoder(Section):
    response_cache: bool


class Cache(Section):
    response_cache_bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """What a deployment says of its text-to-image checkpoint."""

    checkpoint_path: Path
    limits: DrawLimits
    denoiser: Denoiser
    text_encoder: Stage
    vae_decoder: Stage
    response_cache: bool  # of the text encoder


class Deployment(LimitTables):
    """The whole file. `load` is the only way in that knows where the file lies.

    It serves one checkpoint that reads pictures, one that draws, or both. What a table says of a checkpoint that is not
    given is checked all the same, and the tables of what draws may be left out.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
    checkpoint: str | None = None
    draw_checkpoint: str | None = None
    repository: str
    cores: Count
    stages: Stages
    processor_cache: MediaCache
    encoder_cache: EncoderCache
    cache: Cache
    draw: DrawLimits | None = None
    text_encoder: TextEncoder | None = None
    denoiser: Denoiser | None = None
    gpu: Gpu | None = None
    encoder_pool: EncoderPool | None = None
    gateway: Gateway | None = None

    _file: Path = PrivateAttr(default=Path("deployment.toml"))

    @classmethod
    def load(cls, path: Path) -> Deployment:
        """Read and check the file at `path`; raises DeploymentError naming file, key, value and fix."""
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise DeploymentError(
                f"{path} cannot be read ({error.strerror})", fix="give the path of a deployment file"
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise DeploymentError(f"{path} is not TOML ({error})", fix="correct the file") from error
        try:
            deployment = cls.model_validate(table)
        except ValidationError as error:
            raise DeploymentError(f"{path}: {_explain(error)}", fix=_fix(error)) from error
        deployment._file = path.resolve()
        return deployment

    @property
    def path(self) -> Path:
        """The file this came from, absolute."""
        return self._file

    @property
    def reads(self) -> bool:
        """Whether pictures and text go in and text comes out."""
        return self.checkpoint is not None

    @property
    def draws(self) -> bool:
        """Whether text goes in and pictures come out."""
        return self.draw_checkpoint is not None

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the Triton models that one server has, where it serves all of it."""
        return self.models_of("all")

    def models_of(self, pool: Pool) -> tuple[str, ...]:
        """Names of the Triton models of a server of that pool; raises DeploymentError where it would have none.

        With [encoder_pool], only the servers of that pool have the models that encode pictures.
        """
        reading, drawing = MODELS if self.reads else (), DRAW_MODELS if self.draws else ()
        elsewhere = () if self.encoder_pool is None else ENCODER_MODELS
        served = {
            "all": [spec for spec in (*reading, *drawing) if spec not in elsewhere],
            "encoder": [spec for spec in reading if spec in ENCODER_MODELS],
            "language": [spec for spec in reading if spec not in elsewhere],
            "draw": list(drawing),
        }[pool]
        if not served:
            key = "draw_checkpoint" if pool == "draw" else "checkpoint"
            raise DeploymentError(f"{self._file} has no models for the pool {pool!r}", fix=f"set {key}")
        return tuple(spec.name for spec in served)

    @property
    def checkpoint_path(self) -> Path:
        """The folder of the checkpoint that reads; raises DeploymentError where the file names none."""
        if self.checkpoint is None:
            raise DeploymentError(f"{self._file} has no checkpoint that reads pictures", fix="set checkpoint")
        return (self._file.parent / self.checkpoint).resolve()

    @property
    def drawing(self) -> Drawing:
        """All that is said of the checkpoint that draws; raises DeploymentError where the file names none."""
        stages = self.stages
        if (
            self.draw_checkpoint is None
            or self.draw is None
            or self.text_encoder is None
            or self.denoiser is None
            or stages.text_encoder is None
            or stages.vae_decoder is None
        ):
            raise DeploymentError(f"{self._file} has no checkpoint that draws", fix="set draw_checkpoint")
        return Drawing(
            checkpoint_path=(self._file.parent / self.draw_checkpoint).resolve(),
            limits=self.draw,
            denoiser=self.denoiser,
            text_encoder=stages.text_encoder,
            vae_decoder=stages.vae_decoder,
            response_cache=self.text_encoder.response_cache,
        )

    @property
    def repository_path(self) -> Path:
        return (self._file.parent / self.repository).resolve()

    @model_validator(mode="after")
    def something_is_served(self) -> Deployment:
        if self.checkpoint is None and self.draw_checkpoint is None:
            raise ValueError("neither checkpoint nor draw_checkpoint is given, so there is nothing to serve")
        return self

    @model_validator(mode="after")
    def tables_of_what_draws_are_whole(self) -> Deployment:
        tables = {
            "draw": self.draw,
            "text_encoder": self.text_encoder,
            "denoiser": self.denoiser,
            "stages.text_encoder": self.stages.text_encoder,
            "stages.vae_decoder": self.stages.vae_decoder,
        }
        missing = [name for name, table in tables.items() if table is None]
        if missing and (self.draws or len(missing) < len(tables)):
            raise ValueError(f"missing table {', '.join(missing)}, which whoever draws needs")
        return self

    @model_validator(mode="after")
    def admitted_images_fit_the_denoiser(self) -> Deployment:
        if self.draw is None or self.denoiser is None:
            return self
        places = self.denoiser.live_images + self.denoiser.max_queue
        images = self.draw.admission.capacity.images
        if images is None or images > places:
            raise ValueError(
                f"draw.admission.capacity.images = {images} must be given and not be over "
                f"denoiser.live_images + denoiser.max_queue = {places}, or denoiser refuses what was admitted"
            )
        if self.draw.max_images > images:
            raise ValueError(
                f"draw.max_images = {self.draw.max_images} is over draw.admission.capacity.images = {images}"
            )
        return self

    @model_validator(mode="after")
    def gpu_names_what_is_served(self) -> Deployment:
        if self.gpu is None:
            return self
        stages = {"text_encoder", "denoiser", "vae_decoder"}
        missing = [f"gpu.{name}" for name in sorted(stages) if getattr(self.gpu, name) is None]
        if self.draws and missing:
            raise ValueError(f"missing table {', '.join(missing)}, which a GPU host that draws needs")
        return self

    @model_validator(mode="after")
    def threads_fit_the_cores(self) -> Deployment:
        used = {name: stage.instances * stage.threads for name, stage in self.stages.given()}
        used["llm"] = self.llm.threads
        if self.denoiser is not None:
            used["denoiser"] = self.denoiser.threads
        for name, threads in used.items():
            if threads > self.cores:
                raise ValueError(f"{name} uses {threads} threads (instances x threads), over cores = {self.cores}")
        return self

    @model_validator(mode="after")
    def admitted_requests_fit_the_language_model(self) -> Deployment:
        places = self.llm.slots + self.llm.max_queue
        requests = self.admission.capacity.requests
        if requests is None or requests > places:
            raise ValueError(
                f"admission.capacity.requests = {requests} must be given and not be over "
                f"llm.slots + llm.max_queue = {places}, or llm refuses what was admitted"
            )
        return self

    @model_validator(mode="after")
    def answers_to_one_request_fit(self) -> Deployment:
        requests = self.admission.capacity.requests
        if requests is not None and self.text.max_choices > requests:
            raise ValueError(
                f"text.max_choices = {self.text.max_choices} is over admission.capacity.requests = {requests}: "
                "every answer takes the place of a request"
            )
        return self


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            lines.append(f"unknown key {key!r}")
        elif problem["type"] == "missing":
            lines.append(f"missing key {key!r}")
        elif problem["type"] == "value_error":
            lines.append(f"{key + ': ' if key else ''}{problem['ctx']['error']}")
        else:
            lines.append(f"{key} = {problem['input']!r}: {problem['msg']}")
    return ", ".join(lines)


def _fix(error: ValidationError) -> str:
    kinds = {problem["type"] for problem in error.errors(include_url=False)}
    if kinds == {"extra_forbidden"}:
        return "remove the key or correct its spelling"
    if kinds == {"missing"}:
        return "add the key; deployments/demo.toml shows every one"
    return "correct the value; deployments/demo.toml shows every key"
