"""Our engine, as the deployment file has it but for what a comparison wants: 16 slots, no end token, no reuse."""

from __future__ import annotations

import argparse
import itertools
import json
import queue
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from perf.peers import child
from perf.peers.child import Recorder
from proteus.deployment import Deployment
from proteus.language.engine import OnnxEngine
from proteus.language.generation import Event, Failure, GenerationRequest
from proteus.language.sampling import Sampling
from proteus.language.tokenizer import load_tokenizer

PACKAGES = ("onnxruntime", "numpy", "tokenizers")
SLOTS = 16


class Ours:
    joins = True

    def __init__(self, deployment: Deployment, endless_export: Path) -> None:
        llm = deployment.llm
        schedule = llm.schedule.model_copy(update={"policy": "priority"})  # text may have every slot
        prefix_cache = llm.prefix_cache.model_copy(update={"max_bytes": 0})
        limits = {"slots": SLOTS, "threads": 1, "schedule": schedule, "prefix_cache": prefix_cache}
        tokenizer = load_tokenizer(deployment.checkpoint_path)
        self._engine = OnnxEngine(endless_export, tokenizer, llm=llm.model_copy(update=limits), revision="bench")
        self._numbers = itertools.count()

    def run(self, prompts: list[list[int]], recorder: Recorder) -> None:
        ended: queue.SimpleQueue[Failure | None] = queue.SimpleQueue()
        for row, prompt in enumerate(prompts):
            request = GenerationRequest(
                request_key=next(self._numbers).to_bytes(8, "big"),
                input_ids=np.array(prompt, dtype=np.int32),
                visual_tokens=None,
                visual_spans=(),
                sampling=Sampling(max_tokens=recorder.wanted[row]),
            )
            self._engine.submit(request, taker(row, recorder, ended))
        failure = ended.get()
        if failure is not None:
            raise failure.error


def taker(row: int, recorder: Recorder, ended: queue.SimpleQueue[Failure | None]) -> Callable[[Event | Failure], None]:
    """Called from the engine's thread."""

    def take(event: Event | Failure) -> None:
        if isinstance(event, Failure):
            ended.put(event)
        elif recorder.step([(row, event.token_ids)]):
            ended.put(None)

    return take


def endless(folder: Path, to: Path) -> Path:
    """The export without its end tokens, so that every answer has the full length."""
    for file in folder.iterdir():
        if file.name != "export.json":
            (to / file.name).symlink_to(file.resolve())
    manifest = json.loads((folder / "export.json").read_text())
    (to / "export.json").write_text(json.dumps({**manifest, "eos_token_ids": []}))
    return to


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("deployment", type=Path)
    deployment = Deployment.load(parser.parse_args().deployment)
    with tempfile.TemporaryDirectory() as scratch:
        export = endless(deployment.repository_path / "llm" / "1", Path(scratch))
        child.serve(lambda: Ours(deployment, export), PACKAGES)


if __name__ == "__main__":
    main()
