"""How long text waits for its first token while a storm of large multi-picture requests goes on, and without it.

    make perf-storm                       # or: python -m perf.storm [--seconds 15] [--rounds 5] [--json]

One engine after the other on the demo's graphs: the deployment's policy, each policy by itself, and plain first come
first served. Text arrives at random moments (open loop); the storm keeps more picture requests open than there are
slots (closed loop), no two with a picture in common. Every round has all phases, so that all see the same machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from perf.arguments import at_least
from perf.records import Record, write
from proteus.deployment import Deployment
from proteus.language.engine import Emit, Event, Failure, GenerationRequest, OnnxEngine
from proteus.language.generation import Scheduling
from proteus.language.onnx_decoder import DecoderManifest, Floats
from proteus.language.sampling import Sampling
from proteus.language.tokenizer import load_tokenizer

DEPLOYMENT = Path("deployments/demo.toml")
OURS = "auto"
POLICIES = (OURS, "fifo", "pools", "ratio", "priority")
TEXTS_PER_S = 10.0
TEXT_TOKENS = (16, 64)  # of a prompt, at random
PICTURES, PICTURE_TOKENS = 16, 36  # of a storm's request
STORM_OPEN = 12
ANSWER_TOKENS = 16
PATIENCE_S = 60.0
Ids = npt.NDArray[np.int32]


@dataclass
class Phase:
    """What one policy did in one phase of one round."""

    ttfts_s: list[float] = field(default_factory=list)  # of text
    media_answers: int = 0

    @property
    def p95_ms(self) -> float:
        return statistics.quantiles(self.ttfts_s, n=20)[-1] * 1e3


class Load:
    """Sends to one engine; every request is of another scope, so that nothing is reused."""

    def __init__(self, engine: OnnxEngine, manifest: DecoderManifest, seed: int) -> None:
        self._engine, self._manifest = engine, manifest
        self._rng, self._random = random.Random(seed), np.random.default_rng(seed)
        self._numbers = itertools.count()
        self._open = 0
        self._all_ended = threading.Condition()
        rows = (PICTURES * PICTURE_TOKENS, manifest.hidden_size)
        self._rows = self._random.standard_normal(rows, dtype=np.float32)

    def run(self, seconds: float, storm: bool) -> Phase:
        """Text for so long, with or without a storm, and everything answered at the end."""
        phase = Phase()
        until_s = time.monotonic() + seconds
        if storm:
            for _ in range(STORM_OPEN):
                self._send_media(phase, until_s)
        while (now_s := time.monotonic()) < until_s:
            time.sleep(min(self._rng.expovariate(TEXTS_PER_S), until_s - now_s))
            self._send_text(phase)
        with self._all_ended:
            if not self._all_ended.wait_for(lambda: self._open == 0, PATIENCE_S):
                raise SystemExit("answers are missing: the engine hangs")
        return phase

    def _send_text(self, phase: Phase) -> None:
        ids = self._random.integers(8, self._manifest.vocab_size, self._rng.randint(*TEXT_TOKENS), dtype=np.int32)
        sent_s = time.perf_counter()
        first = True

        def take(event: Event | Failure) -> None:
            nonlocal first
            if first:
                first = False
                phase.ttfts_s.append(time.perf_counter() - sent_s)
            self._note(event)

        self._submit(ids, None, take)

    def _send_media(self, phase: Phase, until_s: float) -> None:
        ids = np.full(PICTURES * PICTURE_TOKENS + 32, 9, dtype=np.int32)
        ids[16 : 16 + len(self._rows)] = self._manifest.image_token_id

        def take(event: Event | Failure) -> None:
            if _is_last(event):
                phase.media_answers += 1
                if time.monotonic() < until_s:
                    self._send_media(phase, until_s)
            self._note(event)

        self._submit(ids, self._rows, take)

    def _submit(self, ids: Ids, rows: Floats | None, take: Emit) -> None:
        number = next(self._numbers)
        spans = () if rows is None else tuple((16 + n * PICTURE_TOKENS, PICTURE_TOKENS) for n in range(PICTURES))
        request = GenerationRequest(
            request_key=number.to_bytes(16, "big"),
            input_ids=ids,
            visual_tokens=rows,
            visual_spans=spans,
            sampling=Sampling(max_tokens=ANSWER_TOKENS),
            scheduling=Scheduling(cache_scope=str(number), latency_class="text" if rows is None else "media"),
        )
        with self._all_ended:
            self._open += 1
        self._engine.submit(request, take)

    def _note(self, event: Event | Failure) -> None:
        if isinstance(event, Failure):
            raise event.error
        if event.finish is not None:
            with self._all_ended:
                self._open -= 1
                self._all_ended.notify()


def _is_last(event: Event | Failure) -> bool:
    return isinstance(event, Failure) or event.finish is not None


def measure(deployment: Deployment, policy: str, seconds: float, seed: int) -> tuple[Phase, Phase]:
    """Without a storm and with it, on one engine."""
    folder = deployment.repository_path / "llm" / "1"
    schedule = deployment.llm.schedule.model_copy(update={"policy": policy})
    llm = deployment.llm.model_copy(update={"schedule": schedule})
    engine = OnnxEngine(folder, load_tokenizer(deployment.checkpoint_path), llm, revision="storm")
    try:
        load = Load(engine, DecoderManifest.load(folder), seed)
        load.run(1.0, storm=False)  # warms up
        return load.run(seconds, storm=False), load.run(seconds, storm=True)
    finally:
        engine.close()


def records(rounds: dict[str, list[tuple[Phase, Phase]]], seconds: float, command: str) -> list[Record]:
    """p95 of text's TTFT in a storm, against without it; and what the storm got done meanwhile."""
    made = []
    for policy, phases in rounds.items():
        quiet, storm = ([phase.p95_ms for phase in column] for column in zip(*phases, strict=True))
        ratios = [there / here for here, there in zip(quiet, storm, strict=True)]
        name = {OURS: "text_ttft_p95", "fifo": "text_ttft_p95_fifo"}.get(policy, f"text_ttft_p95/{policy}")
        made.append(
            Record(
                name=name,
                value=round(statistics.median(storm), 2),
                unit="ms",
                baseline=round(statistics.median(quiet), 2),
                ratio=round(statistics.median(ratios), 3),
                runs=[round(value, 2) for value in storm],
                command=command,
                note=f"policy {policy}; baseline: the same text without a storm",
            )
        )
        answers = [storm.media_answers / seconds for _, storm in phases]
        made.append(
            Record(
                name=f"media_answers/{policy}",
                value=round(statistics.median(answers), 2),
                unit="1/s",
                runs=[round(value, 2) for value in answers],
                command=command,
                note=f"{PICTURES} pictures of {PICTURE_TOKENS} tokens each, {ANSWER_TOKENS} tokens at most",
            )
        )
    return made


def show(made: list[Record]) -> None:
    """A table for people."""
    table = Table("record", "value", "unit", "without storm", "ratio", title="text in a storm of pictures")
    for record in made:
        baseline, ratio = ("" if value is None else f"{value:g}" for value in (record.baseline, record.ratio))
        table.add_row(record.name, f"{record.value:g}", record.unit, baseline, ratio)
    Console().print(table)


def main() -> int:
    """Measures, writes perf/results/storm.json and prints; the exit status for the shell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=at_least(1.0), default=15.0, help="of each phase")
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--json", action="store_true", help="print the records instead of a table")
    arguments = parser.parse_args()
    deployment = Deployment.load(DEPLOYMENT)
    rounds: dict[str, list[tuple[Phase, Phase]]] = {policy: [] for policy in POLICIES}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("storm", total=arguments.rounds * len(POLICIES))
        for round_, policy in itertools.product(range(arguments.rounds), POLICIES):
            rounds[policy].append(measure(deployment, policy, arguments.seconds, seed=round_))
            progress.advance(task)
    made = records(rounds, arguments.seconds, f"python -m perf.storm --seconds {arguments.seconds:g}")
    write("storm", made)
    if arguments.json:
        print(json.dumps([asdict(record) for record in made], indent=2))
    else:
        show(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
