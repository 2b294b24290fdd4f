"""Microseconds that choosing one token takes, by fields of the request and size of the vocabulary, beside transformers'
processors and a draw of torch on the same logits. One thread; time of the CPU, since others may use the machine too.

    python -m perf.sampling [--vocab 512 32000 152000] [--runs 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from perf.records import Record, versions, write
from proteus.language.health import CONSTANT_EVERY, Health
from proteus.language.ranking import Floats
from proteus.language.sample import Sampler
from proteus.language.sampling import Sampling

COMMAND = "python -m perf.sampling"
RUN_S = 0.03
PROMPT_TOKENS, STOP_ID = 500, 2
WARM, PENALISED = {"temperature": 0.8}, {"frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.1}
BIASED = {"logit_bias": dict.fromkeys(range(100), 1.0)}
CASES: Mapping[str, Mapping[str, Any]] = {
    "greedy": {},
    "penalties": PENALISED,
    "logit_bias": BIASED,
    "temperature": WARM,
    "top_k": WARM | {"top_k": 50},
    "top_p": WARM | {"top_p": 0.9},
    "min_p": WARM | {"min_p": 0.05},
    "all": WARM | PENALISED | BIASED | {"top_k": 50, "top_p": 0.9, "min_p": 0.05, "min_tokens": 10**9},
    "logprobs": {"logprobs": True, "top_logprobs": 20},
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """Logits of one token, as a decode step gives them."""

    logits: Floats
    highest: int
    peak: float
    prompt_ids: Any  # (PROMPT_TOKENS,) int32

    @classmethod
    def like_a_language_model(cls, vocab_size: int) -> Row:
        """A few likely tokens above many unlikely ones."""
        random = np.random.default_rng(0)
        logits = 2 * random.standard_normal(vocab_size)
        logits[random.integers(vocab_size, size=20)] += np.linspace(6, 14, 20)
        prompt_ids = random.integers(0, vocab_size, PROMPT_TOKENS).astype(np.int32)
        row = logits.astype(np.float32)
        return cls(logits=row, highest=int(row.argmax()), peak=float(row.max()), prompt_ids=prompt_ids)


def ours(row: Row, fields: Mapping[str, Any]) -> Callable[[], object]:
    sampling = Sampling(seed=1, **fields)
    sampler = Sampler(sampling, prompt_ids=row.prompt_ids, stop_ids=frozenset({STOP_ID}), vocab_size=len(row.logits))
    if sampling.logprobs:
        return lambda: sampler.logprobs(row.logits, row.highest)
    return lambda: sampler.choose(row.logits, row.highest, row.peak)


def theirs(row: Row, fields: Mapping[str, Any]) -> Callable[[], object]:
    """The processors that transformers' generate() would run, and its choice."""
    scores, ids = torch.from_numpy(row.logits)[None], torch.from_numpy(row.prompt_ids.astype(np.int64))[None]
    processors: list[Any] = []
    if fields.get("repetition_penalty"):
        processors.append(RepetitionPenaltyLogitsProcessor(fields["repetition_penalty"]))
    if bias := fields.get("logit_bias"):
        processors.append(SequenceBiasLogitsProcessor([[[number], value] for number, value in bias.items()]))
    warpers = {
        "temperature": TemperatureLogitsWarper,
        "top_k": TopKLogitsWarper,
        "top_p": TopPLogitsWarper,
        "min_p": MinPLogitsWarper,
    }
    processors.extend(warper(fields[name]) for name, warper in warpers.items() if name in fields)

    def choose() -> object:
        if fields.get("logprobs"):
            return scores.log_softmax(-1).topk(fields["top_logprobs"])
        processed = scores
        for processor in processors:
            processed = processor(ids, processed)
        if "temperature" not in fields:
            return processed.argmax(-1).item()
        return torch.multinomial(processed.softmax(-1), 1).item()

    return choose


def looks(row: Row) -> Callable[[], object]:
    """The checks of a token's health, the lowest logit included when it is wanted."""
    health = Health()
    peaks = [row.peak, row.peak + 1]

    def look() -> object:
        peaks.reverse()
        return health.check(row.highest, peaks[0], float(row.logits.min()) if health.wants_lowest else None)

    return look


def microseconds(call: Callable[[], object]) -> float:
    """Of CPU time per call, over RUN_S of calls."""
    calls, spent_ns = 1, 0
    while spent_ns < RUN_S * 1e9:
        calls *= 2
        start_ns = time.thread_time_ns()
        for _ in range(calls):
            call()
        spent_ns = time.thread_time_ns() - start_ns
    return spent_ns / calls / 1000


def record(name: str, call: Callable[[], object], baseline: Callable[[], object] | None, runs: int) -> Record:
    """Both in turns, so that what else the machine does falls on both."""
    values, others = [], []
    for _ in range(runs):
        values.append(microseconds(call))
        if baseline is not None:
            others.append(microseconds(baseline))
    ratios = [value / other for value, other in zip(values, others, strict=False)]
    return Record(
        name=name,
        value=round(statistics.median(values), 3),
        unit="us of CPU per token",
        baseline=round(statistics.median(others), 3) if others else None,
        ratio=round(statistics.median(ratios), 4) if ratios else None,
        runs=[round(value, 3) for value in values],
        command=COMMAND,
        versions=versions("torch", "transformers"),
        note="baseline: transformers' processors and torch's choice; without it where nothing corresponds",
    )


def measure(vocab_size: int, runs: int) -> list[Record]:
    row = Row.like_a_language_model(vocab_size)
    records = []
    for name, fields in CASES.items():
        # Greedy is told its token: there, argmax is a step of the engine's, for the whole batch.
        baseline = None if name == "greedy" else theirs(row, fields)
        records.append(record(f"sample/{name}/{vocab_size}", ours(row, fields), baseline, runs))
    records.append(record(f"sample/health/{vocab_size}", looks(row), None, runs))
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, nargs="+", default=[512, 32_000, 152_000])
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    records = [entry for vocab_size in arguments.vocab for entry in measure(vocab_size, arguments.runs)]
    for entry in records:
        ratio = "" if entry.ratio is None else f"   {entry.ratio:6.3f} of transformers' {entry.baseline:9.1f}"
        print(f"{entry.name:28} {entry.value:9.2f} us{ratio}")
    print(f"health looks at the lowest logit every {CONSTANT_EVERY} tokens")
    print(write("sampling", records))


if __name__ == "__main__":
    main()
