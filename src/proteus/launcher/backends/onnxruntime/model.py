"""Triton's `onnxruntime` backend in Python, for servers without the native one: an ONNX file, on the CPU or on the GPU
of its instance. Of the native one's parameters it has `intra_op_thread_count` and `inter_op_thread_count`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnxruntime

from proteus.backend.array_model import ArrayModel, Arrays, Run
from proteus.onnx_session import CUDA, providers


class TritonPythonModel(ArrayModel):
    file = "model.onnx"

    def open(self, path: Path, parameters: Mapping[str, str], device: int | None) -> Run:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(parameters.get("intra_op_thread_count", "1"))
        options.inter_op_num_threads = int(parameters.get("inter_op_thread_count", "1"))
        # Threads that spin while they wait take the core of a neighbour.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.use_deterministic_compute = device is not None
        session = onnxruntime.InferenceSession(str(path), options, providers=providers(device))
        if device is not None and CUDA not in session.get_providers():  # it goes on without a word, on the CPU
            raise RuntimeError(f"onnxruntime {onnxruntime.__version__} finds no CUDA here: install onnxruntime-gpu")
        names = [output.name for output in session.get_outputs()]

        def run(feed: Arrays) -> Arrays:
            return dict(zip(names, session.run(names, feed), strict=True))

        return run
