"""What each change to the language graph is worth: decode steps of a bare loop, with one thing after the other.

    python -m perf.graphs [--rounds 15] [--steps 60] [--streams 1 4 8 16] [--answers 200]

`graph/<variant>/<streams>`: processor ms of a decode step, one thread, pinned to one core; the variants take turns, and
the baseline is `two_graphs`, the graphs before issue 4, of the same round. `prefill/<variant>/<tokens>`: of a prompt.
`tokens_equal/<variant>`: greedy answers about held-out pictures that are those of the float32 graph, token for token;
`tokens_equal/<variant>/64`: the same where every answer goes on for 64 tokens, whatever its end.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from rich.progress import track

from perf import graph_variants as edit
from perf.pictures import held_out
from perf.records import Record, write
from proteus.deployment import Deployment
from proteus.language.kv_slots import KvSlots
from proteus.language.messages import Message, PicturePart, TextPart
from proteus.language.onnx_decoder import DecoderManifest, OnnxDecoder
from proteus.language.prompt import PromptRenderer
from proteus.preprocess.picture import Preprocess

DEPLOYMENT = Path("deployments/demo.toml")
BEFORE = "12e6775"  # the last commit with an embedding graph
BASELINE = "two_graphs"
LOSSY = ("int8_blocks", "int8_dynamic")
CONTEXT_TOKENS, START, ANSWER_TOKENS = 1024, 128, 64
PROMPTS = (40, 160)
Arrays = dict[str, npt.NDArray[Any]]


def build(folder: Path, to: Path) -> dict[str, Path]:
    """A folder for each variant; the ones before `one_call` hold an embedding.onnx too."""
    steps: dict[str, list[Callable[[onnx.ModelProto], object]]] = {
        "rotary": [edit.add_apart, edit.unpack_qkv, edit.split_embedding],
        "qkv": [edit.add_apart, edit.split_embedding],
        "one_call": [edit.add_apart],
        "skip_norms": [],
        "gate_up": [edit.pack_gate_up],
        "head_twice": [edit.head_twice],
    }
    paths = {}
    for name, edits in steps.items():
        model, path = onnx.load(folder / "decoder.onnx"), to / name
        path.mkdir()
        for change in edits:
            apart = change(model)
            if apart is not None:
                onnx.save(apart, path / "embedding.onnx")
        onnx.save(model, path / "decoder.onnx")
        paths[name] = path
    before = to / BASELINE
    before.mkdir()
    for file in ("embedding.onnx", "decoder.onnx"):
        blob = ["git", "show", f"{BEFORE}:model_repository/llm/1/{file}"]
        (before / file).write_bytes(subprocess.run(blob, capture_output=True, check=True).stdout)
    return {BASELINE: before, **paths, **_lossy(folder, to)}


def _lossy(folder: Path, to: Path) -> dict[str, Path]:
    paths = {name: to / name for name in LOSSY}
    for path in paths.values():
        path.mkdir()
    onnx.save(edit.int8_blocks(onnx.load(folder / "decoder.onnx")), paths["int8_blocks"] / "decoder.onnx")
    edit.int8_dynamic(folder / "decoder.onnx", paths["int8_dynamic"] / "decoder.onnx")
    return paths


def bf16_answer(folder: Path, to: Path) -> str:
    """What ONNX Runtime says to products in bfloat16 on a CPU."""
    model = onnx.load(folder / "decoder.onnx")
    edit.bf16_products(model)
    onnx.save(model, to / "bf16.onnx")
    try:
        open_session(to / "bf16.onnx")
    except Exception as error:  # the runtime raises its own kinds
        return str(error).splitlines()[0]
    return "it loads"


def open_session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class Loop:
    """Decode steps and prefills of one variant, bound once."""

    def __init__(self, folder: Path, streams: int, length: int = 1) -> None:
        self.decoder = open_session(folder / "decoder.onnx")
        ports = {port.name: port for port in self.decoder.get_inputs()}
        self.ids, self.positions = (np.full((streams, length), 9, dtype=np.int64) for _ in range(2))
        self.last, self.total = np.zeros(streams, dtype=np.int32), np.zeros((), dtype=np.int32)
        self.logits = np.zeros((streams, self.decoder.get_outputs()[0].shape[1]), dtype=np.float32)
        rng = np.random.default_rng(0)
        pasts = {name: port.shape for name, port in ports.items() if name.startswith("past_")}
        self.caches: Arrays = {
            name: rng.standard_normal((streams, heads, CONTEXT_TOKENS, width)).astype(np.float32)
            for name, (_, heads, _, width) in pasts.items()
        }
        inputs: Arrays = {"seqlens_k": self.last, "total_len": self.total, **self.caches}
        self.embed: ort.IOBinding | None = None
        if "inputs_embeds" in ports:
            self.embedding = open_session(folder / "embedding.onnx")
            embeds = np.zeros((streams, length, ports["inputs_embeds"].shape[2]), dtype=np.float32)
            self.embed = _bound(self.embedding, {"input_ids": self.ids}, {"inputs_embeds": embeds})
            inputs["inputs_embeds"] = embeds
            if "position_ids" in ports:
                inputs["position_ids"] = self.positions
        else:
            inputs["input_ids"] = self.ids
            inputs["visual_rows"] = np.zeros((0, ports["visual_rows"].shape[1]), dtype=np.float32)
            inputs["visual_places"] = np.zeros((0, 2), dtype=np.int64)
        self.inputs = inputs  # bindings hold addresses only
        presents = {name.replace("past", "present"): cache for name, cache in self.caches.items()}
        self.decode = _bound(self.decoder, inputs, {"logits": self.logits, **presents})

    def steps_ms(self, count: int) -> float:
        """Mean of a decode step."""
        begin = time.process_time()
        for place in range(START, START + count):
            self.ids[:, 0], self.positions[...], self.last[...], self.total[()] = place % 200, place, place, place + 1
            self.run()
            self.logits.argmax(axis=1)
        return (time.process_time() - begin) * 1000 / count

    def prefill_ms(self, count: int) -> float:
        length = self.ids.shape[1]
        self.positions[...], self.last[...], self.total[()] = np.arange(length), length - 1, length
        begin = time.process_time()
        for _ in range(count):
            self.run()
        return (time.process_time() - begin) * 1000 / count

    def run(self) -> None:
        if self.embed is not None:
            self.embedding.run_with_iobinding(self.embed)
        self.decoder.run_with_iobinding(self.decode)


def _bound(session: ort.InferenceSession, inputs: Arrays, outputs: Arrays) -> ort.IOBinding:
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    for name, array in outputs.items():
        binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    return binding


def compare(
    variants: dict[str, Path], make: Callable[[Path], Loop], timed: Callable[[Loop], float], rounds: int
) -> dict[str, list[float]]:
    """What each variant took in each round. A round has new sessions, in another order: where weights happen to lie in
    memory is worth 3 %.
    """
    runs: dict[str, list[float]] = {variant: [] for variant in variants}
    order = random.Random(0)
    for _ in track(range(rounds), description="rounds"):
        for variant in order.sample(sorted(variants), len(variants)):
            loop = make(variants[variant])
            timed(loop)
            runs[variant].append(timed(loop))
    return runs


def speed_records(variants: dict[str, Path], arguments: argparse.Namespace, command: str) -> Iterator[Record]:
    cases: list[tuple[str, Callable[[Path], Loop], Callable[[Loop], float]]] = [
        (f"graph/{{}}/{streams}", partial(Loop, streams=streams), partial(Loop.steps_ms, count=arguments.steps))
        for streams in arguments.streams
    ]
    for tokens in PROMPTS:
        make = partial(Loop, streams=1, length=tokens)
        cases.append((f"prefill/{{}}/{tokens}", make, partial(Loop.prefill_ms, count=10)))
    for name, make, timed in cases:
        runs = compare(variants, make, timed, arguments.rounds)
        for variant, values in runs.items():
            ratios = [value / base for value, base in zip(values, runs[BASELINE], strict=True)]
            record = Record(
                name=name.format(variant),
                value=round(statistics.median(values), 4),
                unit="ms",
                baseline=round(statistics.median(runs[BASELINE]), 4),
                ratio=round(statistics.median(ratios), 3),
                runs=[round(value, 4) for value in values],
                command=command,
            )
            print(record.name, record.value, record.ratio, flush=True)
            yield record


class Answers:
    """Greedy answers about held-out pictures, by a decoder graph."""

    def __init__(self, deployment: Deployment, count: int) -> None:
        self.folder = deployment.repository_path / "llm" / "1"
        self.manifest = DecoderManifest.load(self.folder)
        self.prompts = [self._prompt(*pair) for pair in self._pairs(deployment, count)]

    def _pairs(self, deployment: Deployment, count: int) -> Iterator[tuple[npt.NDArray[np.int64], Any]]:
        repository, prepare = deployment.repository_path, Preprocess.from_deployment(deployment)
        encode, connect = (
            open_session(repository / f"{name}/1/model.onnx") for name in ("vision_encoder", "connector")
        )
        renderer = PromptRenderer.from_checkpoint(deployment.checkpoint_path)
        for asked in track(held_out(deployment, count), description="pictures"):
            (features,) = encode.run(None, {"pixel_values": prepare(asked.picture)[None]})
            rows = connect.run(None, {"image_features": features})[0][0]
            message = Message("user", (PicturePart(0), TextPart(asked.question)))
            yield renderer.render([message], [len(rows)]).input_ids.astype(np.int64), rows

    def _prompt(self, ids: npt.NDArray[np.int64], rows: Any) -> tuple[npt.NDArray[np.int64], Any, Any]:
        return ids, rows, np.flatnonzero(ids == self.manifest.image_token_id)

    def of(self, graph: Path, *, ends: bool) -> list[list[int]]:
        """`ends`: an answer stops at its end token."""
        shape = (self.manifest.num_kv_heads, CONTEXT_TOKENS, self.manifest.head_dim)
        decoder = OnnxDecoder(graph, self.manifest, KvSlots(1, self.manifest.num_layers, shape), threads=1)
        stops = self.manifest.eos_token_ids if ends else ()
        return [self._answer(decoder, stops, *prompt) for prompt in track(self.prompts, description=graph.name)]

    def _answer(
        self, decoder: OnnxDecoder, stops: Sequence[int], ids: npt.NDArray[np.int64], rows: Any, places: Any
    ) -> list[int]:
        answer = [int(decoder.prefill(0, ids, 0, rows, places).argmax())]
        while len(answer) < ANSWER_TOKENS and answer[-1] not in stops:
            held = np.array([len(ids) + len(answer) - 1], dtype=np.int32)
            answer.append(int(decoder.step(0, np.array(answer[-1:]), held)[0].argmax()))
        return answer


def equal_answers(answers: Answers, variants: dict[str, Path], command: str) -> Iterator[Record]:
    count = len(answers.prompts)
    for suffix, ends in (("", True), (f"/{ANSWER_TOKENS}", False)):
        want = answers.of(answers.folder, ends=ends)
        mean_tokens = statistics.mean(len(answer) for answer in want)
        for variant in LOSSY:
            got = answers.of(variants[variant], ends=ends)
            same = sum(one == other for one, other in zip(got, want, strict=True))
            record = Record(
                name=f"tokens_equal/{variant}{suffix}",
                value=same,
                unit="answers",
                baseline=count,
                ratio=round(same / count, 3),
                command=command,
                note=f"answers of {mean_tokens:.1f} tokens on average",
            )
            print(record.name, record.value, record.note, flush=True)
            yield record


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.graphs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--answers", type=int, default=200)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # of the quantisers, about each node
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    command = f"python -m perf.graphs --rounds {arguments.rounds} --steps {arguments.steps}"
    answers, records = Answers(Deployment.load(DEPLOYMENT), arguments.answers), []
    with tempfile.TemporaryDirectory() as scratch:
        variants = build(answers.folder, Path(scratch))
        records += speed_records(variants, arguments, command)
        records += equal_answers(answers, variants, command)
        note = bf16_answer(answers.folder, Path(scratch))
    records.append(Record(name="bf16", value=0, unit="graphs that load", command=command, note=note))
    print(note)
    write("graphs", records)


if __name__ == "__main__":
    main()
