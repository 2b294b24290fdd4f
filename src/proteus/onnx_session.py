"""A graph that is run in this process, on threads that are counted."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort

from proteus.deployment import DeploymentError


def open_session(path: Path, threads: int) -> ort.InferenceSession:
    """On the CPU, `threads` in each operator; raises DeploymentError."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Waiting threads must not burn the cores that the other stages compute on.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime raises its own kinds
        raise DeploymentError(f"{path} cannot be loaded", fix="export the checkpoint again") from error
