"""The limit: our decoder graph in a loop with nothing around it. Everything bound once, argmax, no requests."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from perf.peers import child
from perf.peers.child import Recorder

PACKAGES = ("onnxruntime", "numpy")
CONTEXT_TOKENS = 1024  # of a slot, as the demo's deployment has it
Arrays = dict[str, npt.NDArray[Any]]


class BareLoop:
    joins = False

    def __init__(self, graph: Path) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        ports = {port.name: port.shape for port in self._session.get_inputs()}
        self._past = {name: shape for name, shape in ports.items() if name.startswith("past_")}
        self._no_visual: Arrays = {
            "visual_rows": np.zeros((0, *ports["visual_rows"][1:]), dtype=np.float32),
            "visual_places": np.zeros((0, *ports["visual_places"][1:]), dtype=np.int64),
        }
        self._vocab = self._session.get_outputs()[0].shape[1]
        self._loops: dict[int, Loop] = {}

    def run(self, prompts: list[list[int]], recorder: Recorder) -> None:
        streams = len(prompts)
        if streams not in self._loops:
            self._loops[streams] = Loop(self, streams)
        loop = self._loops[streams]
        for row, prompt in enumerate(prompts):
            loop.prefill(row, prompt)
        ids, place, done = loop.logits.argmax(axis=1), len(prompts[0]), False
        while not done:
            done = recorder.step([(row, [token]) for row, token in enumerate(ids.tolist())])
            if not done:
                ids = loop.step(ids, place)
                place += 1

    def caches(self, streams: int) -> Arrays:
        return {
            name: np.zeros((streams, shape[1], CONTEXT_TOKENS, shape[3]), dtype=np.float32)
            for name, shape in self._past.items()
        }

    def logits(self, streams: int) -> npt.NDArray[np.float32]:
        return np.zeros((streams, self._vocab), dtype=np.float32)

    def bound(self, inputs: Arrays, caches: Arrays, logits: npt.NDArray[np.float32]) -> ort.IOBinding:
        """A call that reads and writes these very arrays; keys and values are appended in place."""
        binding = self._session.io_binding()
        for name, array in {**inputs, **self._no_visual, **caches}.items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        presents = {name.replace("past", "present"): array for name, array in caches.items()}
        for name, array in {"logits": logits, **presents}.items():
            binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        return binding

    def call(self, binding: ort.IOBinding) -> None:
        self._session.run_with_iobinding(binding)


class Loop:
    """The arrays of one number of streams, and the decode step bound to them."""

    def __init__(self, bare: BareLoop, streams: int) -> None:
        self._bare, self._caches, self.logits = bare, bare.caches(streams), bare.logits(streams)
        self._ids, self._lengths = np.zeros((streams, 1), dtype=np.int64), np.zeros(streams, dtype=np.int32)
        self._total = np.zeros((), dtype=np.int32)
        self._step = bare.bound(self._inputs(self._ids, self._lengths), self._caches, self.logits)

    def _inputs(self, ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32]) -> Arrays:
        return {"input_ids": ids, "seqlens_k": lengths, "total_len": self._total}

    def prefill(self, row: int, prompt: list[int]) -> None:
        ids, last = np.array([prompt], dtype=np.int64), np.array([len(prompt) - 1], dtype=np.int32)
        self._total[()] = len(prompt)
        caches = {name: cache[row : row + 1] for name, cache in self._caches.items()}
        self._bare.call(self._bare.bound(self._inputs(ids, last), caches, self.logits[row : row + 1]))

    def step(self, ids: npt.NDArray[np.int64], place: int) -> npt.NDArray[np.int64]:
        self._ids[:, 0], self._lengths[...], self._total[()] = ids, place, place + 1
        self._bare.call(self._step)
        highest: npt.NDArray[np.int64] = self.logits.argmax(axis=1)
        return highest


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("graph", type=Path)
    arguments = parser.parse_args()
    child.serve(lambda: BareLoop(arguments.graph), PACKAGES)


if __name__ == "__main__":
    main()
