"""Time to the first token of a prompt that is new, that its own cache scope has asked, and that only another one has.

    make perf-prefix                      # or: python -m perf.prefix [--prompts 200] [--json]

One scope asks a prompt. Another then asks the same, and one that nobody has asked, in a random order: both must take
the same time, for whoever can tell the difference knows what a stranger asked. Then the first scope asks again.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from perf.arguments import at_least
from perf.records import Record, write
from proteus.deployment import Deployment
from proteus.language.engine import Event, Failure, GenerationRequest, OnnxEngine
from proteus.language.generation import Scheduling
from proteus.language.onnx_decoder import DecoderManifest
from proteus.language.sampling import Sampling
from proteus.language.tokenizer import load_tokenizer

DEPLOYMENT = Path("deployments/demo.toml")
PICTURES, PICTURE_TOKENS, TEXT_TOKENS = 4, 36, 96
PAUSE_S = 0.005  # between two requests: the engine keeps blocks of the last one after its client has heard


class Asker:
    """One request after the other; every prompt has pictures and text of its own."""

    def __init__(self, engine: OnnxEngine, manifest: DecoderManifest) -> None:
        self._engine, self._manifest = engine, manifest
        self._random = np.random.default_rng(0)
        self._num_asked = 0

    def prompt(self) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
        """Ids (T,) and rows (R, D)."""
        num_rows = PICTURES * PICTURE_TOKENS
        text = self._random.integers(8, self._manifest.vocab_size, TEXT_TOKENS)
        ids = np.concatenate([text[:16], np.full(num_rows, self._manifest.image_token_id), text[16:]])
        return ids.astype(np.int32), self._random.standard_normal((num_rows, self._manifest.hidden_size), np.float32)

    def ttft_ms(self, ids: np.ndarray, rows: np.ndarray, scope: str) -> float:  # type: ignore[type-arg]
        """Of one request, alone in the engine."""
        ended, took_s = threading.Event(), 0.0
        self._num_asked += 1
        request = GenerationRequest(
            request_key=self._num_asked.to_bytes(16, "big"),
            input_ids=ids,
            visual_tokens=rows,
            visual_spans=tuple((16 + n * PICTURE_TOKENS, PICTURE_TOKENS) for n in range(PICTURES)),
            sampling=Sampling(max_tokens=1),
            scheduling=Scheduling(cache_scope=scope, latency_class="media"),
        )

        def take(event: Event | Failure) -> None:
            nonlocal took_s
            took_s = time.perf_counter() - begin_s
            ended.set()

        time.sleep(PAUSE_S)
        begin_s = time.perf_counter()
        self._engine.submit(request, take)
        ended.wait()
        return took_s * 1e3


def p_value(differences: list[float]) -> float:
    """Two-sided sign test: how likely so uneven signs are when neither is slower (normal approximation)."""
    above = sum(difference > 0 for difference in differences)
    z = (abs(above - len(differences) / 2) - 0.5) / math.sqrt(len(differences) / 4)
    return math.erfc(max(z, 0.0) / math.sqrt(2))


def measure(asker: Asker, num_prompts: int) -> dict[str, list[float]]:
    """ms by how it was asked, a value for each prompt."""
    times: dict[str, list[float]] = {"new": [], "other_scope": [], "hit": []}
    chance = random.Random(0)
    for _ in track(range(num_prompts), description="prompts", console=Console(stderr=True)):
        asked, new = asker.prompt(), asker.prompt()
        asker.ttft_ms(*asked, "one")
        for name, prompt in chance.sample([("other_scope", asked), ("new", new)], 2):
            times[name].append(asker.ttft_ms(*prompt, "other"))
        times["hit"].append(asker.ttft_ms(*asked, "one"))
    return times


def records(times: dict[str, list[float]], command: str) -> list[Record]:
    new = times["new"]
    made = []
    for name in ("hit", "other_scope"):
        ratios = [value / base for value, base in zip(times[name], new, strict=True)]
        chance = p_value([value - base for value, base in zip(times[name], new, strict=True)])
        made.append(
            Record(
                name=f"prefix_ttft/{name}",
                value=round(statistics.median(times[name]), 3),
                unit="ms",
                baseline=round(statistics.median(new), 3),
                ratio=round(statistics.median(ratios), 3),
                runs=[round(value, 3) for value in times[name][:20]],
                command=command,
                note=f"{len(new)} prompts of {TEXT_TOKENS + PICTURES * PICTURE_TOKENS} tokens; baseline: new ones; "
                f"runs: the first 20; sign test p = {chance:.2g}",
            )
        )
    return made


def main() -> int:
    """Measures, writes perf/results/prefix.json and prints; the exit status for the shell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=at_least(2), default=200)
    parser.add_argument("--json", action="store_true", help="print the records instead of a table")
    arguments = parser.parse_args()
    deployment = Deployment.load(DEPLOYMENT)
    folder = deployment.repository_path / "llm" / "1"
    engine = OnnxEngine(folder, load_tokenizer(deployment.checkpoint_path), deployment.llm, revision="perf")
    try:
        times = measure(Asker(engine, DecoderManifest.load(folder)), arguments.prompts)
    finally:
        engine.close()
    made = records(times, f"python -m perf.prefix --prompts {arguments.prompts}")
    write("prefix", made)
    if arguments.json:
        print(json.dumps([asdict(record) for record in made], indent=2))
        return 0
    table = Table("record", "ms", "new prompt, ms", "ratio", "note")
    for record in made:
        table.add_row(record.name, f"{record.value:g}", f"{record.baseline:g}", f"{record.ratio:g}", record.note)
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
