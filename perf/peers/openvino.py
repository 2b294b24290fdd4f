"""OpenVINO GenAI: the pipeline of one batch (llm) and the one that joins requests (cb), in float32 or bf16."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perf.peers import child
from perf.peers.child import Contestant, Recorder, Seconds

PACKAGES = ("openvino", "openvino-genai", "optimum-intel", "transformers")


def convert(checkpoint: Path, out: Path) -> None:
    """By optimum's exporter."""
    exporter = Path(sys.executable).with_name("optimum-cli")
    task = ["--task", "text-generation-with-past", "--weight-format", "fp32"]
    subprocess.run([sys.executable, exporter, "export", "openvino", "-m", checkpoint, *task, out], check=True)


def properties(precision: str) -> dict[str, Any]:
    """float32 also for keys and values; nothing is said of precision where it may choose."""
    one_thread = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
    exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    return one_thread | (exact if precision == "f32" else {})


class OneBatch:
    """LLMPipeline; it tells when its first tokens came only after the last ones."""

    joins = False

    def __init__(self, model: Path, precision: str) -> None:
        import openvino_genai as genai

        self._genai = genai
        self._pipeline = genai.LLMPipeline(str(model), "CPU", ATTENTION_BACKEND="SDPA", **properties(precision))

    def run(self, prompts: list[list[int]], recorder: Recorder) -> None:
        import numpy as np
        import openvino as ov

        ids = np.array(prompts, dtype=np.int64)
        inputs = self._genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
        config = greedy(self._genai, recorder.tokens)
        start = Seconds.now()
        answer = self._pipeline.generate(inputs, config)
        whole = Seconds.now().since(start)
        recorder.step(enumerate(answer.tokens))
        wall = (answer.perf_metrics.get_generate_duration().mean - answer.perf_metrics.get_ttft().mean) / 1000
        # One thread computes all the while: its share of the core in the decode steps is that of the whole.
        recorder.note_decode((recorder.tokens - 1) * len(prompts), Seconds(wall * whole.cpu / whole.wall, wall))


class Joining:
    """ContinuousBatchingPipeline, stepped."""

    joins = True

    def __init__(self, model: Path, precision: str) -> None:
        import openvino_genai as genai

        self._genai = genai
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size, scheduler.max_num_seqs, scheduler.enable_prefix_caching = 1, 16, False
        self._pipeline = genai.ContinuousBatchingPipeline(str(model), scheduler, "CPU", properties(precision))
        self._num_requests = 0

    def run(self, prompts: list[list[int]], recorder: Recorder) -> None:
        import numpy as np
        import openvino as ov

        handles = []
        for row, prompt in enumerate(prompts):
            self._num_requests += 1
            ids, config = np.array([prompt], dtype=np.int64), greedy(self._genai, recorder.wanted[row])
            handles.append(self._pipeline.add_request(self._num_requests, ov.Tensor(ids), config))
        done = False
        while not done:
            self._pipeline.step()
            done = recorder.step([(row, new_ids(handle)) for row, handle in enumerate(handles)])


def greedy(genai: Any, tokens: int) -> Any:
    config = genai.GenerationConfig()
    config.max_new_tokens, config.do_sample, config.ignore_eos = tokens, False, True
    return config


def new_ids(handle: Any) -> list[int]:
    if not handle.can_read():
        return []
    return [token for output in handle.read().values() for token in output.generated_ids]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--convert", type=Path)
    parser.add_argument("--pipeline", choices=("llm", "cb"), default="cb")
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    arguments = parser.parse_args()
    pipelines: dict[str, Callable[[Path, str], Contestant]] = {"llm": OneBatch, "cb": Joining}
    if arguments.convert:
        convert(arguments.model, arguments.convert)
    else:
        child.serve(lambda: pipelines[arguments.pipeline](arguments.model, arguments.precision), PACKAGES)


if __name__ == "__main__":
    main()
