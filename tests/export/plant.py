"""Plants an error in an exported file: one matrix is off by a hundredth."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import numpy_helper


def spoil(source: Path, target: Path) -> Path:
    model = onnx.load(source)
    largest = max(model.graph.initializer, key=lambda value: len(value.raw_data))
    largest.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(largest) * 1.01, largest.name))
    onnx.save(model, target)
    return target
