"""The denoiser's rows by TensorRT, on one GPU: `denoiser.plan`, with a profile for each size of pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from proteus.generation.rows import Call, RowDenoiser, check_inputs
from proteus.generation.task import Floats
from proteus.manifest import DrawManifest
from proteus.tensorrt_session import TensorRtSession


class TensorRtDenoiser(RowDenoiser):
    """A few numbers of rows are bound, with a CUDA graph each, and a call between two of them is padded."""

    def __init__(self, path: Path, manifest: DrawManifest, *, max_rows: int, device: int) -> None:
        self._session = TensorRtSession(path, device)
        check_inputs(path, self._session.inputs, manifest)
        super().__init__(manifest, max_rows=max_rows)

    def _zeros(self, *shape: int) -> Floats:
        return self._session.pinned(*shape)

    def _room(self, num_rows: int) -> int:
        return min(padded_rows(num_rows), self._max_rows)

    def _bind(self, inputs: Mapping[str, Floats], prediction: Floats) -> Call:
        return self._session.bind(inputs, {"prediction": prediction})


def padded_rows(num_rows: int) -> int:
    """1, 2, 3, 4, 6, 8, 12, 16, 24, …: the next of those, at most half as many again."""
    power = 1 << (num_rows - 1).bit_length()
    return power * 3 // 4 if power >= 4 and num_rows <= power * 3 // 4 else power
