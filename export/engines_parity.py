"""An engine against ONNX Runtime on the graph that was exported: finite, and as near as its precision allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from export.calibration import Sample
from export.engines_host import Runner
from export.precision import UnsupportedPrecision
from export.precision_parity import OutputParity, check, compare
from export.tensorrt_plan import BuildError
from proteus.limits_gpu import Precision
from proteus.onnx_session import open_session
from proteus.profiles import Profile, fitting

THREADS = 1
FP32_OF_SCALE = 1e-3  # sums in another order, and other exponentials


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """Of all samples that a profile takes; differences are from the exported float32 graph."""

    num_samples: int
    outputs: tuple[OutputParity, ...]


def compare_engine(
    run: Runner, graph: Path, stage: str, precision: Precision, samples: Sequence[Sample], profiles: Sequence[Profile]
) -> EngineReport:
    """Raises UnsupportedPrecision naming stage, output and number where the engine's numbers cannot be served."""
    inputs = [piece for sample in samples for piece in pieces(sample, profiles)]
    if not inputs:
        raise BuildError(f"{stage}: none of {len(samples)} samples is of a shape that its profiles take")
    session = open_session(graph, THREADS)
    names = [port.name for port in session.get_outputs()]
    wanted = [dict(zip(names, session.run(names, dict(sample)), strict=True)) for sample in inputs]
    shapes = ({name: array.shape for name, array in want.items()} for want in wanted)
    found = [run(sample, of) for sample, of in zip(inputs, shapes, strict=True)]
    outputs = tuple(compare(found, wanted))
    for parity in outputs:
        if precision != "fp32":
            check(stage, precision, parity)
        elif parity.non_finite or parity.of_scale > FP32_OF_SCALE:
            raise UnsupportedPrecision(
                f"{stage}: {parity.output} of the engine has {parity.non_finite:,} values that are not finite, and is "
                f"off by {parity.of_scale:.1e} of its scale",
                limit=f"{FP32_OF_SCALE:g} of its scale in fp32, all of it finite",
                fix=f'set gpu.{stage}.runtime = "onnxruntime", and report the graph',
            )
    return EngineReport(num_samples=len(inputs), outputs=outputs)


def pieces(sample: Sample, profiles: Sequence[Profile]) -> Iterator[Sample]:
    """The sample in batches that a profile takes; none where it is of another shape."""
    number = fitting(profiles, {name: (1, *array.shape[1:]) for name, array in sample.items()})
    if number is None:
        return
    rows = len(next(iter(sample.values())))
    most = min(most[0] for _, _, most in profiles[number].shapes.values())
    for first in range(0, rows, most):
        yield {name: array[first : first + most] for name, array in sample.items()}
