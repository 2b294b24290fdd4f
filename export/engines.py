"""`TARGET=tensorrt`: typed graphs, engines of them, what each of both changes, and their installation: all or none.

Builds go to folders of their own name first; what is served changes when every stage has been built and compared.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from export.calibration import samples_of
from export.engines_host import Host
from export.engines_parity import compare_engine
from export.precision import typed
from export.tensorrt_plan import Phase, Settings, build_plan
from proteus.deployment import Deployment, DeploymentError
from proteus.engines import (
    PLAN_FILE,
    Engine,
    EngineStage,
    builds_of,
    digest_of,
    graph_path,
    install,
    keep,
    stages_on_tensorrt,
    timing_cache_path,
)
from proteus.limits_gpu import Gpu, Precision
from proteus.profiles import Profile, profiles_of, written

Progress = Callable[[str], None]
SCRATCH = ".engine-"  # with which the folders of builds under way begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an engine is to be; one that is kept and is all of it is not built again."""

    tensorrt_version: str
    sm: int
    precision: Precision
    profiles: list[dict[str, Any]]
    optimization_level: int
    workspace_bytes: int
    onnx_sha256: str

    @classmethod
    def of(cls, engine: Engine) -> Wanted:
        return cls(**{field.name: getattr(engine, field.name) for field in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What was made of one stage; its reports are of the build, also where it was kept already."""

    folder: Path
    engine: Engine
    built: bool  # now; else an equal one was kept already

    def document(self) -> dict[str, Any]:
        return {"folder": str(self.folder), "built": self.built, **self.engine.model_dump()}


def build_engines(
    deployment: Deployment,
    hosts: Mapping[EngineStage, Host],
    *,
    progress: Progress = lambda _: None,
    phase: Phase = lambda *_: None,
) -> tuple[Made, ...]:
    """Engines of the stages, each for its host, installed; raises UnsupportedPrecision, BuildError or DeploymentError,
    and then what is served stays as it was.
    """
    if deployment.gpu is None or not hosts or not set(hosts) <= set(stages_on_tensorrt(deployment)):
        raise DeploymentError(
            f"{deployment.path} runs nothing of this checkpoint by TensorRT",
            fix='add the table [gpu], with runtime = "tensorrt" for the stages that shall have engines; '
            "deployments/demo.toml shows it",
        )
    bench = _Bench(deployment=deployment, gpu=deployment.gpu, hosts=hosts, progress=progress, phase=phase)
    made = tuple(bench.make(stage) for stage in hosts)
    progress("installing the engines")
    install(deployment.repository_path, [one.folder for one in made])
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """Makes the engines of one deployment."""

    deployment: Deployment
    gpu: Gpu
    hosts: Mapping[EngineStage, Host]
    progress: Progress
    phase: Phase

    def make(self, stage: EngineStage) -> Made:
        """A kept build that is all that is wanted, or a new one."""
        folder = self.deployment.repository_path / stage
        with _alone(folder, lambda: self.progress(f"{stage}: waiting for another export, which builds it")):
            return self._make(stage)

    def _make(self, stage: EngineStage) -> Made:
        repository, profiles = self.deployment.repository_path, profiles_of(self.deployment, stage)
        host = self.hosts[stage]
        wanted = Wanted(
            tensorrt_version=host.trt.__version__,
            sm=host.sm,
            precision=getattr(self.gpu, stage).precision,
            profiles=written(profiles),
            optimization_level=self.gpu.optimization_level,
            workspace_bytes=self.gpu.workspace_bytes,
            onnx_sha256=digest_of(graph_path(repository, stage)),
        )
        for build in builds_of(repository, stage):
            if wanted == Wanted.of(build.engine) and digest_of(build.folder / PLAN_FILE) == build.engine.plan_sha256:
                self.progress(f"{stage}: {build.name} is kept already")
                return Made(folder=build.folder, engine=build.engine, built=False)
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=repository / stage) as folder:
            return self._build(stage, wanted, profiles, Path(folder))

    def _build(self, stage: EngineStage, wanted: Wanted, profiles: Sequence[Profile], scratch: Path) -> Made:
        host, repository = self.hosts[stage], self.deployment.repository_path
        graph, low, path = graph_path(repository, stage), scratch / "model.onnx", scratch / PLAN_FILE
        self.progress(f"{stage}: inputs to compare with")
        samples = samples_of(self.deployment, stage)
        self.progress(f"{stage}: the graph in {wanted.precision}")
        report = {"graph": asdict(typed(graph, stage, wanted.precision, samples, low))}
        self.progress(f"{stage}: building {len(profiles)} profiles by TensorRT {wanted.tensorrt_version}")
        host.use()
        plan = build_plan(host.trt, low, stage, profiles, self._settings(wanted, host), self.phase)
        path.write_bytes(plan.content)
        engine = Engine(
            stage=stage,
            **asdict(wanted),
            plan_sha256=digest_of(path),
            plan_bytes=path.stat().st_size,
            built_at=datetime.now(UTC).isoformat(timespec="seconds"),
            build_s=round(plan.build_s, 3),
        )
        if host.open is not None:
            self.progress(f"{stage}: comparing the engine with ONNX Runtime")
            engine.save(path)
            run = host.open(path)
            report["engine"] = asdict(
                compare_engine(run, graph, stage, wanted.precision, samples, profiles, self.deployment.cores)
            )
        engine = engine.model_copy(update={"report": report})
        return Made(folder=keep(repository, path, engine), engine=engine, built=True)

    def _settings(self, wanted: Wanted, host: Host) -> Settings:
        timings = timing_cache_path(self.deployment, wanted.tensorrt_version, wanted.sm)
        return Settings(
            optimization_level=wanted.optimization_level,
            workspace_bytes=wanted.workspace_bytes,
            tf32=wanted.precision != "fp32",
            timing_cache=None if host.sms else timings,
            sms=host.sms,
        )


@contextmanager
def _alone(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """The only build of a stage meanwhile; what is left there of one that was killed is removed."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        for left in folder.glob(f"{SCRATCH}*"):
            shutil.rmtree(left)
        yield
    finally:
        os.close(handle)
