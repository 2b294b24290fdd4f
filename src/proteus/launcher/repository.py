"""What the launcher needs to know of a deployment, and how a server of it is to run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from proteus.launcher.gpu_host import GpuHost
from proteus.launcher.tracing import Tracing
from proteus.launcher.watch import RestartPolicy

if TYPE_CHECKING:
    from proteus.deployment import Deployment, Pool
    from proteus.limits_gpu import Hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """What the launcher needs to know of a deployment."""

    path: Path
    models: tuple[str, ...] = ()  # to serve; none: whatever is there
    response_cache_bytes: int = 0
    cores: int | None = None
    gpu: GpuHost | None = None  # None: on CPUs

    @staticmethod
    def of(deployment: Deployment | Path | Repository, *, pool: Pool = "all", hardware: Hardware = "cpu") -> Repository:
        """Reads the deployment file when given its path. `pool` and `hardware` of a Repository are its own."""
        if isinstance(deployment, Repository):
            return deployment
        from proteus.deployment import Deployment

        loaded = Deployment.load(deployment) if isinstance(deployment, Path) else deployment
        models = loaded.models_of(pool)
        return Repository(
            path=loaded.repository_path,
            models=models,
            response_cache_bytes=loaded.cache.response_cache_bytes,
            cores=loaded.cores,
            gpu=GpuHost.of(loaded, models) if hardware == "gpu" else None,
        )

    def model_names(self) -> tuple[str, ...]:
        """Of every model that is served."""
        return self.models or tuple(sorted(file.parent.name for file in self.path.glob("*/config.pbtxt")))

    def count_models(self) -> int:
        return len(self.model_names())


class Options(TypedDict, total=False):
    """How to run a server; see `Server`."""

    http_port: int | None
    grpc_port: int | None
    metrics_port: int | None
    host: str
    tritonserver: Path | None
    log: Path | None
    watch: bool
    restart_policy: RestartPolicy
    show_progress: bool
    ready_timeout_s: float
    tracing: Tracing
