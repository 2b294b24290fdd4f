"""A torch program (`.pt2`) that is run in this process: on counted threads of the CPU, or on one GPU.

torch is imported when a program is opened, not before: serving without one needs no torch. Programs are float32; a
lower precision is autocast's choice of operators, with the weights that only those read stored in it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proteus.deployment import DeploymentError
from proteus.pt2_archive import check_archive

Array = NDArray[Any]
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
# Whose weights autocast would copy to the lower precision at every call.
_PRODUCTS = ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose2d", "matmul", "mm", "bmm", "addmm")


class TorchProgram:
    """Not thread-safe. `inputs` and `outputs` name its tensors in order."""

    def __init__(self, path: Path, *, threads: int, device: int | None = None, precision: str = "fp32") -> None:
        """Raises DeploymentError."""
        if precision not in DTYPES:
            raise DeploymentError(
                f'{path} is to run on torch with precision = "{precision}"',
                limit=f"one of {', '.join(DTYPES)}",
                fix='choose one of these, or runtime = "tensorrt"',
            )
        ports = check_archive(path)
        self.inputs, self.outputs = ports.inputs, ports.outputs
        self._torch = torch = _import_torch(path)
        self.place = _place(torch, path, device)
        torch.set_num_threads(threads)
        _be_exact(torch)
        self._dtype = None if precision == "fp32" else getattr(torch, DTYPES[precision])
        self._module = _load(torch, path, self.place)
        if self._dtype is not None:
            _store_weights(self._module, self._dtype)

    def tensor(self, array: Array) -> Any:
        """A tensor on the memory of `array` on the CPU, or of its shape on the GPU, to copy into."""
        tensor = self._torch.from_numpy(array)
        return tensor if self.place == "cpu" else tensor.to(self.place)

    def pinned(self, *shape: int) -> NDArray[np.float32]:
        """Zeros that a GPU copies from without waiting."""
        zeros = self._torch.zeros(shape, dtype=self._torch.float32, pin_memory=self.place != "cpu")
        array: NDArray[np.float32] = zeros.numpy()
        return array

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """A call that reads `inputs` and writes `outputs`, whatever is in them by then."""
        there, back = [self.tensor(array) for array in inputs], [self._torch.from_numpy(array) for array in outputs]
        fresh = [self._torch.from_numpy(array) for array in inputs] if self.place != "cpu" else []

        def call() -> None:
            for tensor, new in zip(there, fresh, strict=False):
                tensor.copy_(new, non_blocking=True)
            for kept, result in zip(back, self._run(there), strict=True):
                kept.copy_(result)

        return call

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Outputs for inputs, on the host."""
        return [result.cpu().numpy() for result in self._run([self.tensor(array) for array in inputs])]

    def _run(self, tensors: Sequence[Any]) -> Sequence[Any]:
        with self._torch.inference_mode(), self._lower():
            results = self._module(*tensors)
        results = results if isinstance(results, tuple) else (results,)
        return [result.float() if result.dtype == self._dtype else result for result in results]

    def _lower(self) -> AbstractContextManager[Any]:
        if self._dtype is None:
            return nullcontext()
        context: AbstractContextManager[Any] = self._torch.autocast(
            self.place.partition(":")[0], dtype=self._dtype, cache_enabled=False
        )
        return context


def _import_torch(path: Path) -> Any:
    try:
        import torch
    except ImportError as error:
        raise DeploymentError(
            f"{path} is to run on torch, which is not installed",
            fix='install torch, or choose runtime = "tensorrt" or "onnxruntime"',
        ) from error
    return torch


def _place(torch: Any, path: Path, device: int | None) -> str:
    if device is None:
        return "cpu"
    if device >= torch.cuda.device_count():
        raise DeploymentError(
            f"{path} is to run on GPU {device}",
            limit=f"torch {torch.__version__} sees {torch.cuda.device_count()} of them",
            fix="correct the device in [gpu], or install a torch that is built for CUDA",
        )
    return f"cuda:{device}"


def _be_exact(torch: Any) -> None:
    """What is called fp32 is fp32 (not TF32), sums of low products too, and the same call takes the same kernels."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


def _load(torch: Any, path: Path, place: str) -> Any:
    # It tells of every operator that is not installed; none of them is used.
    logging.getLogger("torch.export").setLevel(logging.ERROR)
    try:
        program = torch.export.load(path)
        if place != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, place)
        return program.module()
    except Exception as error:  # torch raises whatever its parts raise
        raise DeploymentError(
            f"{path} cannot be loaded by torch {torch.__version__}",
            limit="a program is loaded by the version that wrote it, or a newer one",
            fix="export it with this torch: make export CHECKPOINT=folder TARGET=torch",
        ) from error


def _store_weights(module: Any, dtype: Any) -> None:
    """Weights that only products read, in the precision of products."""
    for node in module.graph.nodes:
        users = [user.target for user in node.users]
        if node.op == "get_attr" and users and all(_is_product(target) for target in users):
            owner, _, name = node.target.rpartition(".")
            weight = getattr(module.get_submodule(owner), name)
            if weight.is_floating_point():
                weight.data = weight.data.to(dtype)


def _is_product(target: Any) -> bool:
    return str(target).removeprefix("aten.").partition(".")[0] in _PRODUCTS
