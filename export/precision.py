"""An exported graph in the precision of a GPU stage: strongly typed, for TensorRT, and held against its origin.

Inputs and outputs keep their dtypes. What overflows on the samples stays float32 and is named in the report. FP8 stands
in a graph whose other low values are float16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from export.precision_fp8 import FP8_STAGES, fp8_nodes, quantise
from export.precision_graph import Lowering, file_bytes, save
from export.precision_parity import LIMITS, OTHERS, OutputParity, UnsupportedPrecision, check, compare
from export.precision_regions import FOLLOWING, PRODUCTS, float_inputs, low_nodes
from export.precision_runs import Sample, run_typed, run_watched
from proteus.limits_gpu import Precision

# Of a precision's largest number. The samples are not all inputs there are, and sums on their way are not watched:
# TensorRT may hold those of float16 products in float16.
HEADROOM = 0.25
_DTYPES: Mapping[Precision, ir.DataType] = {
    "fp16": ir.DataType.FLOAT16,
    "bf16": ir.DataType.BFLOAT16,
    "fp8": ir.DataType.FLOAT16,
}
_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
# The first whose convolutions take bfloat16; from 20 to it operators took on dtypes, and none of ours another meaning.
_BF16_OPSET = 22
# Measured on the demo's checkpoints; in fp16 it is 0.2 % of the scale, and 1 of 255.
_NOT_IN_FP8 = {
    "text_encoder": "text states are off by 9 % of their scale, for a stage that runs once for a prompt",
    "vae_decoder": "pixels are off by up to 49 of 255",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptNode:
    """A node that could be computed in the precision, and stays float32."""

    node: str
    op: str
    value: str  # its input, weight or output that is too large
    peak: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionReport:
    stage: str
    precision: Precision
    limit_of_scale: float
    limit_cosine: float
    num_samples: int
    low_nodes: int
    fp8_nodes: int  # products among them
    casts: int
    kept: tuple[KeptNode, ...]
    outputs: tuple[OutputParity, ...]
    source_bytes: int  # of the float32 file and its weights
    file_bytes: int


def typed(
    onnx_path: Path,
    stage: str,
    precision: Precision,
    samples: Sequence[Sample],
    out: Path,
    *,
    threads: int = 1,
) -> PrecisionReport:
    """Write `onnx_path` in `precision` to `out`; raises UnsupportedPrecision naming stage, number, limit and fix.

    Large weights go to `<out>.data`. Nothing is left at `out` when it raises.
    """
    if precision == "fp8" and stage not in FP8_STAGES:
        why = _NOT_IN_FP8.get(stage, "it was never measured")
        raise UnsupportedPrecision(f"{stage} is not computed in fp8: {why}", limit=_FP8, fix=_other(stage, precision))
    model = _load(onnx_path, stage, precision)
    if precision == "fp32":
        save(model, out)
        return _report(onnx_path, stage, precision, samples, out)
    watched = run_watched(onnx_path, samples, threads)
    lowering = Lowering(model.graph, _DTYPES[precision])
    too_large = dict(_too_large(model.graph, watched.peaks, lowering.dtype))
    wanted = low_nodes(model.graph, ())
    kept = tuple(too_large[node] for node in model.graph if node in wanted and node in too_large)
    low = low_nodes(model.graph, too_large)
    in_fp8 = fp8_nodes(model.graph, stage, low) if precision == "fp8" else []
    lowering.move(low)
    quantise(lowering, in_fp8, watched.peaks)
    try:
        save(model, out)
        outputs = tuple(compare(run_typed(out, samples, threads), watched.outputs))
        for output in outputs:
            check(stage, precision, output)
    except BaseException:
        _remove(out)
        raise
    counts = (len(low), len(in_fp8), lowering.num_casts)
    return _report(onnx_path, stage, precision, samples, out, counts, kept, outputs)


_FP8 = f"fp8 for {', '.join(FP8_STAGES)}"


def _other(stage: str, precision: Precision) -> str:
    return f"choose {OTHERS[precision]} as precision of [gpu.{stage}]"


def _load(path: Path, stage: str, precision: Precision) -> ir.Model:
    """A graph of the standard's own operators, without branches and loops: what TensorRT reads, and we understand."""
    model = ir.load(path)
    LiftConstantsToInitializersPass()(model)
    if precision == "bf16":
        model.opset_imports[""] = max(model.opset_imports[""], _BF16_OPSET)
    for node in model.graph.all_nodes():
        inner = any(value.type in _GRAPHS for value in node.attributes.values())
        if node.domain not in ("", "ai.onnx") or inner:
            raise UnsupportedPrecision(
                f"{stage}: {node.op_type} ({node.domain or 'with graphs inside'}) is in {path.name}",
                limit="standard operators without graphs of their own",
                fix=f'export the checkpoint again, or choose "onnxruntime" as runtime of [gpu.{stage}]',
            )
    outputs = [value for node in model.graph for value in node.outputs]
    untyped = next((value.name for value in outputs if value.name and value.dtype is None), None)
    if untyped is not None:
        raise UnsupportedPrecision(
            f"{stage}: nothing in {path.name} tells the type of {untyped}",
            limit="a graph that names the type of all it computes, or a float could be taken for none",
            fix="export the checkpoint again",
        )
    return model


def _too_large(graph: ir.Graph, peaks: Mapping[str, float], dtype: ir.DataType) -> Iterator[tuple[ir.Node, KeptNode]]:
    """Nodes that have more on one side, or in a weight, than the precision holds with room to spare."""
    limit = HEADROOM * float(ml_dtypes.finfo(dtype.numpy()).max)
    known = dict(peaks)
    for name, weight in graph.initializers.items():
        if weight.dtype == ir.DataType.FLOAT and weight.const_value is not None:
            peak = float(np.abs(weight.const_value.numpy()).max(initial=0.0))
            known[name] = peak if peak == peak else np.inf
    for node in graph:
        if node.op_type not in PRODUCTS | FOLLOWING or node.outputs[0].dtype != ir.DataType.FLOAT:
            continue
        around = (*(value for _, value in float_inputs(node)), *node.outputs)
        names = [str(value.name) for value in around if value.name in known]
        worst = max(names, key=lambda name: known[name])
        if known[worst] > limit:
            yield node, KeptNode(node=str(node.name), op=node.op_type, value=worst, peak=known[worst])


def _report(
    source: Path,
    stage: str,
    precision: Precision,
    samples: Sequence[Sample],
    out: Path,
    counts: tuple[int, int, int] = (0, 0, 0),
    kept: tuple[KeptNode, ...] = (),
    outputs: tuple[OutputParity, ...] = (),
) -> PrecisionReport:
    low, in_fp8, casts = counts
    return PrecisionReport(
        stage=stage,
        precision=precision,
        limit_of_scale=LIMITS[precision].of_scale,
        limit_cosine=LIMITS[precision].cosine,
        num_samples=len(samples),
        low_nodes=low,
        fp8_nodes=in_fp8,
        casts=casts,
        kept=kept,
        outputs=outputs,
        source_bytes=file_bytes(source),
        file_bytes=file_bytes(out),
    )


def _remove(path: Path) -> None:
    for file in (path, path.with_name(f"{path.name}.data")):
        file.unlink(missing_ok=True)
