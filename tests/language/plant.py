"""Copies of an export with something wrong in them, to see what the engine makes of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


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


def edit_logits(folder: Path, logits_after: Mapping[int, np.ndarray[Any, np.dtype[np.float32]]]) -> None:
    """Whatever the model would say after these ids, it says these logits (V,), and nothing of it reaches others."""
    path = folder / "decoder.onnx"
    model = onnx.load(path)
    (last,) = (node for node in model.graph.node if "logits" in node.output)
    last.output[0] = told = "logits_before"
    for number, logits in logits_after.items():
        constants = {"id": np.int64(number), "logits": logits[None], "last": np.array(-1), "axis": np.array([1])}
        names = {name: f"planted_{name}_{number}" for name in (*constants, "ids", "is_id", "row_is_id", "told")}
        model.graph.initializer.extend(
            numpy_helper.from_array(np.asarray(value), names[name]) for name, value in constants.items()
        )
        model.graph.node.extend(
            [
                helper.make_node("Gather", ["input_ids", names["last"]], [names["ids"]], axis=1),
                helper.make_node("Equal", [names["ids"], names["id"]], [names["is_id"]]),
                helper.make_node("Unsqueeze", [names["is_id"], names["axis"]], [names["row_is_id"]]),
                helper.make_node("Where", [names["row_is_id"], names["logits"], told], [names["told"]]),
            ]
        )
        told = names["told"]
    model.graph.node.append(helper.make_node("Identity", [told], ["logits"]))
    onnx.save(model, path)
