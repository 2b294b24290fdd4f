"""Engines of TensorRT in a model repository: where they lie, what they were built from, which one is installed.

Every build is kept in a folder named after what runs it, and the one that is served also lies in the model's version
folder. Nothing here needs TensorRT.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from proteus.deployment import Deployment, DeploymentError
from proteus.limits_gpu import Precision

EngineStage = Literal["vision_encoder", "connector", "text_encoder", "denoiser", "vae_decoder"]
STAGES: tuple[EngineStage, ...] = get_args(EngineStage)
BUILDS, ENGINE_FILE, PLAN_FILE = "engines", "engine.json", "model.plan"
FORMAT = 1
EXPORT_AGAIN = "make export CHECKPOINT=folder TARGET=tensorrt"


class Engine(BaseModel):
    """`engine.json`: what a plan was built from, and what runs it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = FORMAT
    stage: EngineStage
    tensorrt_version: str
    sm: int  # compute capability x 10
    precision: Precision
    profiles: list[dict[str, Any]]  # name, and min, opt, max of each input
    onnx_sha256: str  # of the exported graph and its weights
    plan_sha256: str
    plan_bytes: int
    built_at: str  # UTC, ISO 8601
    build_s: float
    optimization_level: int
    workspace_bytes: int
    report: dict[str, Any] = {}  # what was compared; for people

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.tensorrt_version}-sm{self.sm}-{self.precision}"

    def save(self, plan: Path) -> None:
        """Beside the plan that it tells of."""
        with replacing(plan.with_name(ENGINE_FILE)) as path:
            path.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Engine:
        """Raises DeploymentError naming the file and the fix."""
        try:
            engine = cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise DeploymentError(f"{path} cannot be read ({error.strerror})", fix=EXPORT_AGAIN) from error
        except ValidationError as error:
            names = ", ".join(".".join(map(str, problem["loc"])) or "the document" for problem in error.errors())
            raise DeploymentError(f"{path}: {names} missing or wrong", fix=EXPORT_AGAIN) from error
        if engine.format != FORMAT:
            raise DeploymentError(f"{path} has format {engine.format}", limit=f"format = {FORMAT}", fix=EXPORT_AGAIN)
        return engine

    @classmethod
    def found(cls, path: Path) -> Engine | None:
        """None where it is missing or damaged."""
        try:
            return cls.load(path)
        except DeploymentError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One kept build of one stage."""

    folder: Path
    engine: Engine
    installed: bool
    stale: bool  # the stage's ONNX file is another one by now

    @property
    def name(self) -> str:
        return self.folder.name


def graph_path(repository: Path, stage: EngineStage) -> Path:
    """The exported graph of a stage."""
    return repository / stage / "1" / ("denoiser.onnx" if stage == "denoiser" else "model.onnx")


def plan_path(repository: Path, stage: EngineStage) -> Path:
    """The installed engine of a stage; its `engine.json` lies beside it."""
    return graph_path(repository, stage).with_suffix(".plan")


def timing_cache_path(deployment: Deployment, tensorrt_version: str, sm: int) -> Path:
    """What a builder learnt of the kernels of one GPU, for the next build."""
    return deployment.path.parent / "engines.timing" / f"{tensorrt_version}-sm{sm}.cache"


def digest_of(path: Path) -> str:
    """SHA-256, hex, of a file and of the weights beside it (`<file>.data`)."""
    digest = hashlib.sha256()
    for file in (path, path.with_name(f"{path.name}.data")):
        if file == path or file.exists():
            with file.open("rb") as stream:
                hashlib.file_digest(stream, lambda: digest)
    return digest.hexdigest()


def keep(repository: Path, plan: Path, engine: Engine) -> Path:
    """Move a plan into the folder of its build; one of the same name is replaced. Returns the folder."""
    folder = repository / engine.stage / BUILDS / engine.name
    folder.mkdir(parents=True, exist_ok=True)
    plan.replace(folder / PLAN_FILE)
    engine.save(folder / PLAN_FILE)
    return folder


def install(repository: Path, folders: Iterable[Path]) -> list[Engine]:
    """Make kept builds the ones that are served; raises DeploymentError before any is touched where one is damaged."""
    try:
        engines = [(folder, _whole(folder)) for folder in folders]
        with ExitStack() as places:  # all of them are there before the first takes its place: a disk may be full
            for folder, engine in engines:
                place = plan_path(repository, engine.stage)
                _link(folder / PLAN_FILE, places.enter_context(replacing(place)))
                place = place.with_name(ENGINE_FILE)
                shutil.copyfile(folder / ENGINE_FILE, places.enter_context(replacing(place)))
    except OSError as error:
        raise DeploymentError(
            f"the engines of {repository} cannot be replaced ({error.strerror}: {error.filename})",
            fix="export the checkpoint first, run this as somebody who may write there, and see that the disk has room",
        ) from error
    return [engine for _, engine in engines]


def builds_of(repository: Path, stage: EngineStage) -> list[Build]:
    """The kept builds of a stage, the newest first; those that `damaged` tells of are none."""
    graph, place = graph_path(repository, stage), plan_path(repository, stage)
    kept = {
        file.parent: engine for file in _engine_files(repository, stage) if (engine := Engine.found(file)) is not None
    }
    onnx_sha256 = digest_of(graph) if kept and graph.exists() else None
    served = Engine.found(place.with_name(ENGINE_FILE)) if place.exists() else None
    builds = [
        Build(
            folder=folder,
            engine=engine,
            installed=served is not None and engine.plan_sha256 == served.plan_sha256,
            stale=engine.onnx_sha256 != onnx_sha256,
        )
        for folder, engine in kept.items()
    ]
    return sorted(builds, key=lambda build: build.engine.built_at, reverse=True)


def damaged(repository: Path, stages: Iterable[EngineStage] = STAGES) -> list[str]:
    """Kept builds that cannot be used, each with the fix."""
    files = [file for stage in stages for file in _engine_files(repository, stage)]
    what = "cannot be read by this version; delete its folder if nobody needs it"
    return [f"{file} {what}" for file in files if Engine.found(file) is None]


def named(repository: Path, name: str, stages: Collection[EngineStage] = STAGES) -> list[Build]:
    """Of each stage that has it, the build of that name; what a name begins with is enough where only one begins so.

    Raises DeploymentError where no stage has one, or a stage has several.
    """
    found: list[Build] = []
    known: set[str] = set()
    for stage in stages:
        builds = builds_of(repository, stage)
        known |= {build.name for build in builds}
        same = [build for build in builds if build.name == name]
        same = same or [build for build in builds if build.name.startswith(f"{name}-")]
        if len(same) > 1:
            raise DeploymentError(
                f"{stage} has {', '.join(build.name for build in same)}", fix=f"name one of them, for --model {stage}"
            )
        found += same
    if not found:
        raise DeploymentError(
            f"no engine of {', '.join(stages)} is named {name}",
            limit=f"known are {', '.join(sorted(known)) or 'none'}",
            fix=f"name one of those, or build it: {EXPORT_AGAIN}",
        )
    return found


def exported_stages(deployment: Deployment) -> tuple[EngineStage, ...]:
    """The stages of the checkpoints that the deployment file names."""
    here = {"vision_encoder": deployment.reads, "connector": deployment.reads}
    return tuple(stage for stage in STAGES if here.get(stage, deployment.draws))


def stages_on_tensorrt(deployment: Deployment) -> tuple[EngineStage, ...]:
    """Those of them that run by TensorRT."""
    tables: dict[EngineStage, Any] = {
        stage: getattr(deployment.gpu, stage, None) for stage in exported_stages(deployment)
    }
    return tuple(stage for stage, table in tables.items() if table is not None and table.runtime == "tensorrt")


def check_installed(
    deployment: Deployment, tensorrt_version: str, sm: int, models: Collection[str] | None = None
) -> list[str]:
    """What keeps the installed engines from being served here, each with its fix; of `models`, or of all.

    `sm` is the compute capability x 10 of the GPU: 90 is that of an H100.
    """
    host = _Host(deployment=deployment, tensorrt_version=tensorrt_version, sm=sm)
    stages = (stage for stage in stages_on_tensorrt(deployment) if models is None or stage in models)
    return [problem for stage in stages for problem in host.problems(stage)]


def wanted_precision(deployment: Deployment, stage: EngineStage) -> Precision | None:
    """That of the deployment file; None where it says none."""
    table = getattr(deployment.gpu, stage, None)
    return None if table is None else table.precision


@dataclass(frozen=True, slots=True, kw_only=True)
class _Host:
    """What engines are served on, and as which deployment file says."""

    deployment: Deployment
    tensorrt_version: str
    sm: int

    def problems(self, stage: EngineStage) -> list[str]:
        place = plan_path(self.deployment.repository_path, stage)
        if not place.exists():
            return [f"{place} is missing; {self._mend(stage)}"]
        try:
            engine = Engine.load(place.with_name(ENGINE_FILE))
        except DeploymentError as error:
            return [str(error)]
        strange = list(self._strange(stage, engine))
        if strange:
            mend = self._mend(stage)
            return [f"{place} {problem}; {mend}" for problem in strange]
        return [f"{place} {problem}" for problem in self._changed(place, stage, engine)]

    def _strange(self, stage: EngineStage, engine: Engine) -> Iterator[str]:
        if engine.tensorrt_version != self.tensorrt_version:
            yield f"was built by TensorRT {engine.tensorrt_version}, and this is {self.tensorrt_version}"
        if engine.sm != self.sm:
            yield f"was built for compute capability {engine.sm / 10}, and this GPU has {self.sm / 10}"
        wanted = wanted_precision(self.deployment, stage)
        if engine.precision != wanted:  # it is part of what names the encoder in caches
            yield f"computes in {engine.precision}, and {self.deployment.path} says {wanted} for gpu.{stage}"

    def _changed(self, place: Path, stage: EngineStage, engine: Engine) -> Iterator[str]:
        graph = graph_path(self.deployment.repository_path, stage)
        if digest_of(place) != engine.plan_sha256:
            again = f"proteus engines use {engine.name} --model {stage}"
            yield f"is not the file that its {ENGINE_FILE} tells of; {again}"
        if graph.exists() and digest_of(graph) != engine.onnx_sha256:
            yield f"was built from another {graph.name} than is there now; build it here: {EXPORT_AGAIN}"

    def _mend(self, stage: EngineStage) -> str:
        """How to install a kept build that fits, where there is one; else how to make one."""
        fitting = (self.tensorrt_version, self.sm, wanted_precision(self.deployment, stage))
        for build in builds_of(self.deployment.repository_path, stage):
            engine = build.engine
            if not build.stale and (engine.tensorrt_version, engine.sm, engine.precision) == fitting:
                return f"a build that fits is kept: proteus engines use {build.name} --model {stage}"
        return f"build it here: {EXPORT_AGAIN}"


def _engine_files(repository: Path, stage: EngineStage) -> list[Path]:
    return sorted((repository / stage / BUILDS).glob(f"*/{ENGINE_FILE}"))


def _whole(folder: Path) -> Engine:
    engine, plan = Engine.load(folder / ENGINE_FILE), folder / PLAN_FILE
    if not plan.exists() or digest_of(plan) != engine.plan_sha256:
        raise DeploymentError(
            f"{plan} is missing or is not the file that {ENGINE_FILE} tells of", fix=f"build it again: {EXPORT_AGAIN}"
        )
    return engine


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A name beside `target` that takes its place at the end of the block, at once, or is gone after an error."""
    path = target.with_name(f".{target.name}.{os.getpid()}")
    path.unlink(missing_ok=True)  # of a process that was killed
    try:
        yield path
        path.replace(target)
    finally:
        path.unlink(missing_ok=True)


def _link(source: Path, target: Path) -> None:
    """The same file under another name, or a copy where the disk cannot; builds are replaced, never written into."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
