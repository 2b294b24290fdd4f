"""The denoiser's rows by ONNX Runtime, on the CPU or on one GPU. `denoiser.onnx` is the portable graph, in float32."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort

from proteus.generation.rows import Call, RowDenoiser, check_inputs
from proteus.generation.task import Floats
from proteus.manifest import DrawManifest
from proteus.onnx_session import open_session

Place = tuple[str, int]  # onnxruntime's name of a kind of device, and its number
HOST: Place = ("cpu", 0)


class OnnxDenoiser(RowDenoiser):
    """Bound once to memory of the host; on a GPU, to memory there that each call copies the inputs to."""

    def __init__(
        self, path: Path, manifest: DrawManifest, *, max_rows: int, threads: int, device: int | None = None
    ) -> None:
        self._session = open_session(path, threads, device)
        self._place = HOST if device is None else ("cuda", device)
        check_inputs(path, {port.name for port in self._session.get_inputs()}, manifest)
        super().__init__(manifest, max_rows=max_rows)

    def _bind(self, inputs: Mapping[str, Floats], prediction: Floats) -> Call:
        bind = on_host if self._place == HOST else on_device
        return bind(self._session, self._place, inputs, prediction)


def on_host(session: ort.InferenceSession, place: Place, inputs: Mapping[str, Floats], prediction: Floats) -> Call:
    """A call on the arrays themselves: nothing is copied."""
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_input(name, *place, np.float32, array.shape, array.ctypes.data)
    _bind_prediction(binding, prediction)
    return lambda: session.run_with_iobinding(binding)


def on_device(session: ort.InferenceSession, place: Place, inputs: Mapping[str, Floats], prediction: Floats) -> Call:
    """A call on memory at `place`. The runtime reads what is bound from the host only once, when it is bound."""
    binding = session.io_binding()
    there = {name: ort.OrtValue.ortvalue_from_numpy(array, *place) for name, array in inputs.items()}
    for name, value in there.items():
        binding.bind_ortvalue_input(name, value)
    _bind_prediction(binding, prediction)

    def call() -> None:
        for name, value in there.items():
            value.update_inplace(inputs[name])
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return call


def _bind_prediction(binding: ort.IOBinding, prediction: Floats) -> None:
    """The runtime copies what a GPU computed to where it is bound."""
    binding.bind_output("prediction", *HOST, np.float32, prediction.shape, prediction.ctypes.data)
