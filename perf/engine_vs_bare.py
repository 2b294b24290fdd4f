"""Tokens per second of the engine and of a bare loop over the same two graphs, side by side in one process.

The bare loop is the limit: inputs bound once, embedding, decoder, argmax, nothing else. Both decode the same prompts
with one thread on one core, in turns, several times; medians are reported. On a machine that others use too, tokens
per second of CPU time is the number to compare; wall time is reported beside it.

    python perf/engine_vs_bare.py deployments/demo.toml [--streams 1 4 8] [--tokens 128] [--rounds 15] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from proteus.deployment import Deployment
from proteus.language.engine import Event, Failure, GenerationRequest, OnnxEngine
from proteus.language.sampling import Sampling
from proteus.language.tokenizer import load_tokenizer

PROMPT_TOKENS = 80


@dataclass(frozen=True)
class Clock:
    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> Clock:
        return cls(time.perf_counter(), time.process_time())

    def rates(self, tokens: int) -> dict[str, float]:
        """Tokens per second since this moment."""
        now = Clock.now()
        return {"cpu": tokens / (now.cpu_s - self.cpu_s), "wall": tokens / (now.wall_s - self.wall_s)}


class BareLoop:
    """Greedy decoding of equally long prompts, nothing but numpy and ONNX Runtime."""

    def __init__(self, folder: Path, context_tokens: int, streams: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.embedding = ort.InferenceSession(folder / "embedding.onnx", options, providers=["CPUExecutionProvider"])
        self.decoder = ort.InferenceSession(folder / "decoder.onnx", options, providers=["CPUExecutionProvider"])
        past = [port for port in self.decoder.get_inputs() if port.name.startswith("past_")]
        self.caches = {
            port.name: np.zeros((streams, port.shape[1], context_tokens, port.shape[3]), dtype=np.float32)
            for port in past
        }
        width, vocab = self.decoder.get_inputs()[0].shape[2], self.decoder.get_outputs()[0].shape[1]
        self.ids, self.positions = (np.zeros((streams, 1), dtype=np.int64) for _ in range(2))
        self.embeds = np.zeros((streams, 1, width), dtype=np.float32)
        self.last_places, self.total = np.zeros(streams, dtype=np.int32), np.zeros((), dtype=np.int32)
        self.logits = np.zeros((streams, vocab), dtype=np.float32)
        self.embed_step = self.embedding.io_binding()
        bind(self.embed_step, {"input_ids": self.ids}, {"inputs_embeds": self.embeds})
        self.decode_step = self.bound(self.embeds, self.positions, self.last_places, self.logits, slice(0, streams))

    def bound(
        self,
        embeds: npt.NDArray[np.float32],
        positions: npt.NDArray[np.int64],
        last_places: npt.NDArray[np.int32],
        logits: npt.NDArray[np.float32],
        rows: slice,
    ) -> ort.IOBinding:
        binding = self.decoder.io_binding()
        caches = {name: cache[rows] for name, cache in self.caches.items()}
        inputs = {"inputs_embeds": embeds, "position_ids": positions, "seqlens_k": last_places, "total_len": self.total}
        presents = {name.replace("past", "present"): cache for name, cache in caches.items()}
        bind(binding, {**inputs, **caches}, {"logits": logits, **presents})
        return binding

    def run(self, prompts: list[list[int]], tokens: int) -> tuple[list[list[int]], dict[str, float], dict[str, float]]:
        """Ids; rates of the decode steps alone; rates with the prefills."""
        start = Clock.now()
        for row, prompt in enumerate(prompts):
            embeds = self.embedding.run(None, {"input_ids": np.array([prompt])})[0]
            positions, last = np.arange(len(prompt))[None], np.array([len(prompt) - 1], dtype=np.int32)
            self.total[()] = len(prompt)
            rows = slice(row, row + 1)
            self.decoder.run_with_iobinding(self.bound(embeds, positions, last, self.logits[rows], rows))
        ids = np.empty((tokens, len(prompts)), dtype=np.int64)
        ids[0] = self.logits.argmax(axis=1)
        decoding = Clock.now()
        for step in range(1, tokens):
            place = len(prompts[0]) + step - 1
            self.ids[:, 0], self.positions[...], self.last_places[...] = ids[step - 1], place, place
            self.total[()] = place + 1
            self.embedding.run_with_iobinding(self.embed_step)
            self.decoder.run_with_iobinding(self.decode_step)
            ids[step] = self.logits.argmax(axis=1)
        return ids.T.tolist(), decoding.rates((tokens - 1) * len(prompts)), start.rates(tokens * len(prompts))


class EngineRun:
    """All prompts submitted at once; the decode rate is taken while every one of them is decoding."""

    def __init__(self, engine: OnnxEngine, prompts: list[list[int]], tokens: int) -> None:
        self.engine, self.prompts, self.tokens = engine, prompts, tokens
        self.ids: list[list[int]] = [[] for _ in prompts]
        self.num_started = self.num_ended = self.num_counted = 0
        self.decoding: Clock | None = None
        self.decode_rates: dict[str, float] = {}
        self.ended = threading.Event()

    def run(self) -> tuple[list[list[int]], dict[str, float], dict[str, float]]:
        start = Clock.now()
        for row, prompt in enumerate(self.prompts):
            request = GenerationRequest(
                request_key=bytes([row]),
                input_ids=np.array(prompt, dtype=np.int32),
                visual_tokens=None,
                visual_spans=(),
                sampling=Sampling(max_tokens=self.tokens),
            )
            self.engine.submit(request, self.taker(row))
        self.ended.wait()
        return self.ids, self.decode_rates, start.rates(self.tokens * len(self.prompts))

    def taker(self, row: int) -> Callable[[Event | Failure], None]:
        def take(event: Event | Failure) -> None:
            if isinstance(event, Failure):
                raise event.error
            self.num_started += not self.ids[row]
            self.ids[row] += event.token_ids
            if self.decoding is not None:
                self.num_counted += 1
                if event.finish is not None and not self.decode_rates:
                    self.decode_rates = self.decoding.rates(self.num_counted)
            elif self.num_started == len(self.prompts):
                self.decoding = Clock.now()
            self.num_ended += event.finish is not None
            if self.num_ended == len(self.prompts):
                self.ended.set()

        return take


def bind(binding: ort.IOBinding, inputs: dict[str, npt.NDArray[Any]], outputs: dict[str, npt.NDArray[Any]]) -> None:
    for name, array in inputs.items():
        binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    for name, array in outputs.items():
        binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def endless(folder: Path, to: Path) -> Path:
    """The export without its end tokens, so that every answer has the full length."""
    for file in folder.iterdir():
        (to / file.name).symlink_to(file.resolve())
    manifest = json.loads((folder / "export.json").read_text())
    (to / "export.json").unlink()
    (to / "export.json").write_text(json.dumps({**manifest, "eos_token_ids": []}))
    return to


def median(rates: list[dict[str, float]]) -> dict[str, float]:
    return {clock: round(statistics.median(rate[clock] for rate in rates), 1) for clock in ("cpu", "wall")}


def measure(checkpoint: Path, folder: Path, streams: int, tokens: int, rounds: int) -> dict[str, Any]:
    manifest = json.loads((folder / "export.json").read_text())
    context_tokens = manifest["context_tokens"]
    rng = np.random.default_rng(streams)
    allowed = [number for number in range(manifest["vocab_size"]) if number != manifest["image_token_id"]]
    prompts = rng.choice(allowed, (streams, PROMPT_TOKENS)).tolist()
    bare = BareLoop(folder, context_tokens, streams)
    engine = OnnxEngine(
        folder,
        load_tokenizer(checkpoint),
        slots=max(streams, 8),
        context_tokens=context_tokens,
        max_queue=1,
        threads=1,
    )
    runs: dict[str, list[dict[str, float]]] = {"bare": [], "bare_whole": [], "engine": [], "engine_whole": []}
    for round_ in range(rounds + 1):
        bare_ids, *bare_rates = bare.run(prompts, tokens)
        engine_ids, *engine_rates = EngineRun(engine, prompts, tokens).run()
        if bare_ids != engine_ids:
            raise SystemExit("the engine's tokens differ from the bare loop's")
        if round_ > 0:  # the first one warms up
            for name, rates in zip(runs, [*bare_rates, *engine_rates], strict=True):
                runs[name].append(rates)
    engine.close()
    medians = {name: median(rates) for name, rates in runs.items()}
    share = {
        clock: round(
            statistics.median(e[clock] / b[clock] for e, b in zip(runs["engine"], runs["bare"], strict=True)), 3
        )
        for clock in ("cpu", "wall")
    }
    return {"streams": streams, "tokens_per_s": medians, "engine_share_of_bare": share}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deployment", type=Path)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    deployment = Deployment.load(arguments.deployment)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as scratch:
        folder = endless(deployment.repository_path / "llm" / "1", Path(scratch))
        rows = []
        for streams in arguments.streams:
            rows.append(measure(deployment.checkpoint_path, folder, streams, arguments.tokens, arguments.rounds))
            print(json.dumps(rows[-1]), flush=True)
        manifest = json.loads((folder / "export.json").read_text())
    report = {
        "command": " ".join(["python", *sys.argv]),
        "model": {key: manifest[key] for key in ("hidden_size", "num_layers", "num_kv_heads", "vocab_size")},
        "prompt_tokens": PROMPT_TOKENS,
        "threads": 1,
        "load_average_1min": round(os.getloadavg()[0], 1),
        "versions": {"python": platform.python_version(), "onnxruntime": ort.__version__, "numpy": np.__version__},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, pinned to one",
        "medians": rows,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
