"""The denoiser's rows by torch, on one GPU or on the CPU: `denoiser.pt2`, a program of torch.export.

On the CPU every row is a call of its own: torch's kernels there follow the number of rows, and a picture must not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from proteus.generation.rows import Call, RowDenoiser, check_inputs
from proteus.generation.task import Floats
from proteus.manifest import DrawManifest
from proteus.torch_session import TorchProgram


class TorchDenoiser(RowDenoiser):
    """A GPU takes all rows at once."""

    def __init__(
        self,
        path: Path,
        manifest: DrawManifest,
        *,
        max_rows: int,
        threads: int,
        device: int | None = None,
        precision: str = "fp32",
    ) -> None:
        self._program = TorchProgram(path, threads=threads, device=device, precision=precision)
        check_inputs(path, self._program.inputs, manifest)
        super().__init__(manifest, max_rows=max_rows)

    def _zeros(self, *shape: int) -> Floats:
        return self._program.pinned(*shape)

    def _bind(self, inputs: Mapping[str, Floats], prediction: Floats) -> Call:
        arrays = [inputs[name] for name in self._program.inputs]
        if self._program.place != "cpu":
            return self._program.bind(arrays, [prediction])
        parts = [slice(row, row + 1) for row in range(len(prediction))]
        calls = [self._program.bind([array[part] for array in arrays], [prediction[part]]) for part in parts]

        def call() -> None:
            for one in calls:
                one()

        return call
