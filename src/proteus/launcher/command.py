"""The command line of tritonserver. Every option is one that Triton 2.51, the embedded server, knows as well."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from proteus.launcher.gpu_host import GpuHost
from proteus.launcher.installation import Installation
from proteus.launcher.ports import Ports
from proteus.launcher.tracing import OFF, Tracing

SHM_DEFAULT_BYTES = SHM_GROWTH_BYTES = 1 << 20
EXIT_TIMEOUT_S = 1
# What no client of ours asks for, and NVIDIA's bulletins of 2025 want kept from strangers.
CLOSED = "model-repository,shared-memory,logging,trace"
CPU_ONLY = ("--allow-gpu-metrics=false", "--pinned-memory-pool-byte-size=0")


def command(
    installation: Installation,
    *,
    repository: Path,
    models: Sequence[str],
    backends: Path,
    ports: Ports,
    response_cache_bytes: int,
    shm_prefix: str,
    tracing: Tracing = OFF,
    gpu: GpuHost | None = None,
) -> list[str]:
    """Listens where `ports` say, has `models` of `repository`, as configured there for this hardware; none: all."""
    cache = [f"--cache-directory={installation.caches}", f"--cache-config=local,size={response_cache_bytes}"]
    return [
        str(installation.tritonserver),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
        f"--backend-config=python,shm-default-byte-size={SHM_DEFAULT_BYTES}",
        f"--backend-config=python,shm-growth-byte-size={SHM_GROWTH_BYTES}",
        # The configurations are complete; completing them would start every stub twice.
        "--disable-auto-complete-config",
        f"--http-address={ports.host}",
        f"--http-port={ports.http}",
        f"--grpc-address={ports.host}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-address={ports.host}",
        f"--metrics-port={ports.metrics}",
        *(CPU_ONLY if gpu is None else gpu.arguments()),
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        # Those that are kept for the next requests keep the memory of the largest ones they ever were.
        "--grpc-infer-allocation-pool-size=0",
        *(cache if response_cache_bytes else []),
        *tracing.arguments(),
        *_closed(),
        *(["--model-control-mode=explicit", *(f"--load-model={model}" for model in models)] if models else []),
    ]


def _closed() -> list[str]:
    """Told to load some models, Triton lets clients load and unload them: nobody has the key that this takes."""
    closed = f"{CLOSED}:proteus-key={secrets.token_hex(16)}"
    return [f"--http-restricted-api={closed}", f"--grpc-restricted-protocol={closed}"]
