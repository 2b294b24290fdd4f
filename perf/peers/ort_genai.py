"""onnxruntime-genai over its own export: one batch from begin to end, for on a CPU it joins no requests."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from perf.peers import child
from perf.peers.child import Recorder

PACKAGES = ("onnxruntime-genai", "onnxruntime", "numpy")
NO_TOKEN = 2


def convert(checkpoint: Path, out: Path) -> None:
    """By the package's own builder."""
    from onnxruntime_genai.models import builder  # puts its own folder on the path, and finds its parts there
    from builders import base  # isort: skip

    # The builder takes any layer with as many outputs as the vocabulary for the head. Here the layers of the MLP have
    # as many too, and would replace it: wrong logits without a word.
    base.Model.has_lm_head = lambda self, module: module is self.weights.get_output_embeddings()
    paths = (None, str(checkpoint), str(out), "fp32", "cpu", str(out / "cache"))
    options = builder.parse_extra_options(*paths, [])
    builder.create_model(*paths, **options)


class OrtGenai:
    joins = False

    def __init__(self, model: Path) -> None:
        import onnxruntime_genai as og

        self._og = og
        config = og.Config(str(model))
        config.clear_providers()
        threads = {"intra_op_num_threads": 1, "inter_op_num_threads": 1}
        # No token ends an answer: the one named here is outside the vocabulary.
        model_facts = {"decoder": {"session_options": threads}, "eos_token_id": NO_TOKEN}
        config.overlay(json.dumps({"model": model_facts}))
        self._model = og.Model(config)

    def run(self, prompts: list[list[int]], recorder: Recorder) -> None:
        import numpy as np

        streams, length = len(prompts), len(prompts[0])
        parameters = self._og.GeneratorParams(self._model)
        total = length + recorder.tokens
        parameters.set_search_options(
            do_sample=False, batch_size=streams, max_length=total, past_present_share_buffer=True
        )
        generator = self._og.Generator(self._model, parameters)
        generator.append_tokens(np.array(prompts, dtype=np.int32))
        done = False
        while not done:
            generator.generate_next_token()
            done = recorder.step([(row, [int(token)]) for row, token in enumerate(generator.get_next_tokens())])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--convert", type=Path)
    arguments = parser.parse_args()
    if arguments.convert:
        convert(arguments.model, arguments.convert)
    else:
        child.serve(lambda: OrtGenai(arguments.model), PACKAGES)


if __name__ == "__main__":
    main()
