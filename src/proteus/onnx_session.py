"""A graph that is run in this process, on threads that are counted, on the CPU or on one GPU."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort

from proteus.deployment import DeploymentError

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"


def open_session(path: Path, threads: int, device: int | None = None) -> ort.InferenceSession:
    """On GPU `device`, or where it is None on the CPU, `threads` in each operator; raises DeploymentError."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Waiting threads must not burn the cores that the other stages compute on.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    options.use_deterministic_compute = device is not None
    if device is not None:
        _check_cuda(CUDA in ort.get_available_providers(), path, "has no CUDA provider")
    try:
        session = ort.InferenceSession(path, options, providers=providers(device))
    except Exception as error:  # the runtime raises its own kinds
        raise DeploymentError(f"{path} cannot be loaded", fix="export the checkpoint again") from error
    if device is not None:
        # Where a library of CUDA is missing, the runtime goes on without a word, on the CPU.
        _check_cuda(CUDA in session.get_providers(), path, "has a CUDA provider that does not start")
    return session


def providers(device: int | None) -> list[tuple[str, dict[str, str]]]:
    """What computes; behind CUDA the CPU, for the few operators on shapes."""
    if device is None:
        return [(CPU, {})]
    cuda = {
        "device_id": str(device),
        "use_tf32": "0",  # it would keep 10 bits of what is called fp32
        "cudnn_conv_algo_search": "HEURISTIC",  # not by trial, which another start may decide in another way
        "arena_extend_strategy": "kSameAsRequested",  # beside other models
    }
    return [(CUDA, cuda), (CPU, {})]


def _check_cuda(is_there: bool, path: Path, what: str) -> None:
    if not is_there:
        raise DeploymentError(
            f"{path} is to run on a GPU, and onnxruntime {ort.__version__} here {what}",
            limit="the wheel `onnxruntime-gpu`, in place of `onnxruntime`, with CUDA and cuDNN of its major versions",
            fix="install it, or choose runtime = 'tensorrt' or 'torch' in [gpu]",
        )
