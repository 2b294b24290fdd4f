"""What every Python-based backend of ours does around the program it runs: tensors in, tensors out, in one batch.

Configuration means what it means to Triton's native backends. Parameters of ours: `nice`, how far the process gives way
to the server; `clock_output`, an output (B, 2): its batch begun and done, monotonic ns.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from proteus.backend.startup import be_nicer, device_of

Arrays = dict[str, NDArray[Any]]  # by name
Run = Callable[[Arrays], Arrays]


class ArrayModel(ABC):
    """A `TritonPythonModel` of a backend."""

    file: str  # where the configuration names none

    @abstractmethod
    def open(self, path: Path, parameters: Mapping[str, str], device: int | None) -> Run:
        """The program of one instance, on GPU `device`, or on the CPU where it is None."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        be_nicer(int(parameters.get("nice", "0")))
        path = Path(args["model_repository"], args["model_version"], config.get("default_model_filename") or self.file)
        self.program = self.open(path, parameters, device_of(args))
        self.inputs, self.outputs = _types(config["input"]), _types(config["output"])
        self.batched, self.clock_output = config["max_batch_size"] > 0, parameters.get("clock_output")

    def execute(self, requests: list[Any]) -> list[Any]:
        if self.batched and len(requests) > 1:
            try:
                return self._run_together([self._read(request) for request in requests])
            except Exception as error:
                pb_utils.Logger.log_warn(f"a batch of {len(requests)} failed, running it one by one: {error}")
        return [self._run_alone(request) for request in requests]

    def _read(self, request: Any) -> Arrays:
        tensors = {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs}
        return {name: tensor.astype(self.inputs[name], copy=False) for name, tensor in tensors.items()}

    def _run(self, feed: Arrays) -> list[NDArray[Any]]:
        begun_ns = time.monotonic_ns()
        results = self.program(feed)
        if self.clock_output is not None:
            results[self.clock_output][:] = begun_ns, time.monotonic_ns()
        return [results[name].astype(kind, copy=False) for name, kind in self.outputs.items()]

    def _run_together(self, feeds: list[Arrays]) -> list[Any]:
        ends = np.cumsum([len(next(iter(feed.values()))) for feed in feeds])[:-1]
        batch = {name: np.concatenate([feed[name] for feed in feeds]) for name in self.inputs}
        split = [np.split(result, ends) for result in self._run(batch)]
        return [self._response(parts) for parts in zip(*split, strict=True)]

    def _run_alone(self, request: Any) -> Any:
        try:
            return self._response(self._run(self._read(request)))
        except Exception as error:
            pb_utils.Logger.log_error(f"a request failed: {error}")
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("internal: the model failed on these inputs"))

    def _response(self, results: Any) -> Any:
        tensors = [pb_utils.Tensor(name, result) for name, result in zip(self.outputs, results, strict=True)]
        return pb_utils.InferenceResponse(tensors)


def _types(tensors: list[dict[str, Any]]) -> dict[str, Any]:
    return {tensor["name"]: pb_utils.triton_string_to_numpy(tensor["data_type"]) for tensor in tensors}
