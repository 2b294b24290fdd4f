"""Triton's backend `proteus_torch`: a torch program, on the CPU or on the GPU of its instance.

Parameters: `intra_op_thread_count`, and `precision` (fp32, fp16, bf16) of its products.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from proteus.backend.array_model import ArrayModel, Arrays, Run
from proteus.torch_session import TorchProgram


class TritonPythonModel(ArrayModel):
    file = "model.pt2"

    def open(self, path: Path, parameters: Mapping[str, str], device: int | None) -> Run:
        program = TorchProgram(
            path,
            threads=int(parameters.get("intra_op_thread_count", "1")),
            device=device,
            precision=parameters.get("precision", "fp32"),
        )

        def run(feed: Arrays) -> Arrays:
            inputs = [feed[name].copy() for name in program.inputs]  # Triton's memory may not be written to
            return dict(zip(program.outputs, program.run(inputs), strict=True))

        return run
