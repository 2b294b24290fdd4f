"""Copies of an export with something wrong in them, to see what the engine makes of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper


def copy(folder: Path, to: Path, **manifest: Any) -> Path:
    """The llm folder of an export, with other values in its manifest."""
    shutil.copytree(folder, to)
    set_manifest(to, **manifest)
    return to


def set_manifest(folder: Path, **values: Any) -> None:
    path = folder / "export.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def edit_embedding(folder: Path, *, num_rows: int | None = None, nan_row: int | None = None) -> None:
    """Keep only the first rows of the token embedding, or spoil one; the head's weights stay as they are."""
    path = folder / "decoder.onnx"
    model = onnx.load(path)
    (lookup,) = (node for node in model.graph.node if node.op_type == "Gather" and node.input[1] == "input_ids")
    (table,) = (tensor for tensor in model.graph.initializer if tensor.name == lookup.input[0])
    rows = numpy_helper.to_array(table).copy()
    if nan_row is not None:
        rows[nan_row] = np.nan
    lookup.input[0] = "edited"
    model.graph.initializer.append(numpy_helper.from_array(rows[:num_rows], lookup.input[0]))
    onnx.save(model, path)
