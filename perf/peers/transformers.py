"""transformers: `generate` over a static cache, eager or compiled, one batch of equally long prompts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from perf.peers import child
from perf.peers.child import Recorder

PACKAGES = ("transformers", "torch")


class StaticCache:
    joins = False

    def __init__(self, model: Path, compiled: bool) -> None:
        import torch
        from transformers import AutoModelForCausalLM, CompileConfig

        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self._model.generation_config.eos_token_id = None
        self._compile: dict[str, Any] = {"disable_compile": True}
        if compiled:
            config = CompileConfig(fullgraph=True, dynamic=False, mode="default")
            config._compile_all_devices = True  # else it compiles for GPUs only
            self._compile = {"compile_config": config}

    def run(self, prompts: list[list[int]], recorder: Recorder) -> None:
        import torch

        ids, steps = torch.tensor(prompts), Steps(recorder)
        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=max(recorder.wanted),  # of all batches: another length would compile anew
                stopping_criteria=[lambda ids, scores: torch.full((len(ids),), steps.done)],
                cache_implementation="static",
                streamer=steps,
                **self._compile,
            )


class Steps:
    """What `generate` tells of each step: the prompts first, then a token for each stream."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._is_prompt = True
        self.done = False  # all streams have what they want

    def put(self, value: Any) -> None:
        if not self._is_prompt:
            self.done = self._recorder.step([(row, [token]) for row, token in enumerate(value.tolist())])
        self._is_prompt = False

    def end(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--compiled", action="store_true")
    arguments = parser.parse_args()
    child.serve(lambda: StaticCache(arguments.model, arguments.compiled), PACKAGES)


if __name__ == "__main__":
    main()
