"""An engine against ONNX Runtime on the graph that was exported: finite, and as near as its precision allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from export.calibration import Sample
from export.engines_host import Runner
from export.precision import UnsupportedPrecision
from export.precision_parity import OutputParity, check, compare
from export.tensorrt_plan import BuildError
from proteus.contract_draw import LATENTS
from proteus.limits_gpu import Precision
from proteus.onnx_session import open_session
from proteus.profiles import Profile, fitting

FP32_OF_SCALE = 1e-3  # sums in another order, and other exponentials
PIXEL_STEP = 1 / 255  # of scale: what lies between two whole numbers may be rounded to either


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """Of all samples that a profile takes; differences are from the exported float32 graph."""

    num_samples: int
    profiles: tuple[str, ...]  # that took one
    outputs: tuple[OutputParity, ...]


def compare_engine(
    run: Runner,
    graph: Path,
    stage: str,
    precision: Precision,
    samples: Sequence[Sample],
    profiles: Sequence[Profile],
    threads: int = 1,
) -> EngineReport:
    """Raises UnsupportedPrecision naming stage, output and number where the engine's numbers cannot be served."""
    inputs = [piece for sample in (*samples, *of_other_sizes(samples, profiles)) for piece in pieces(sample, profiles)]
    if not inputs:
        raise BuildError(f"{stage}: none of {len(samples)} samples is of a shape that its profiles take")
    session = open_session(graph, threads)
    names = [port.name for port in session.get_outputs()]
    wanted = [dict(zip(names, session.run(names, dict(sample)), strict=True)) for sample in inputs]
    shapes = ({name: array.shape for name, array in want.items()} for want in wanted)
    found = [run(sample, of) for sample, of in zip(inputs, shapes, strict=True)]
    outputs = tuple(compare(found, wanted))
    for parity in outputs:
        if precision != "fp32":
            check(stage, precision, parity)
            continue
        limit = PIXEL_STEP if wanted[0][parity.output].dtype == np.uint8 else FP32_OF_SCALE
        if parity.non_finite or parity.of_scale > limit:
            raise UnsupportedPrecision(
                f"{stage}: {parity.output} of the engine has {parity.non_finite:,} values that are not finite, and is "
                f"off by {parity.of_scale:.1e} of its scale",
                limit=f"{limit:.1e} of its scale in fp32, all of it finite",
                fix=f'set gpu.{stage}.runtime = "onnxruntime", and report the graph',
            )
    tried = {number_of(sample, profiles) for sample in inputs}
    names = [profile.name for number, profile in enumerate(profiles) if number in tried]
    return EngineReport(num_samples=len(inputs), profiles=tuple(names), outputs=outputs)


def of_other_sizes(samples: Sequence[Sample], profiles: Sequence[Profile]) -> Iterator[Sample]:
    """A row for each profile that takes none of the samples: each has kernels of its own. The latents of the first
    sample, side by side until they are as large.
    """
    first = {name: array[:1] for name, array in samples[0].items()}
    tried = {number_of(sample, profiles) for sample in samples}
    for number in sorted(set(range(len(profiles))) - tried):
        for given in _latents_of(profiles[number]):
            sample = {**first, LATENTS.name: _tiled(first[LATENTS.name], given)}
            if number_of(sample, profiles) == number:
                yield sample
                break


def number_of(sample: Sample, profiles: Sequence[Profile]) -> int | None:
    """Of the profile that takes a row of it."""
    return fitting(profiles, {name: (1, *array.shape[1:]) for name, array in sample.items()})


def _latents_of(profile: Profile) -> Iterator[tuple[int, int]]:
    """Height and width: opt's, and those of which some profile named before may have none."""
    if LATENTS.name in profile.shapes:
        least, best, most = profile.shapes[LATENTS.name]
        yield from product(*((best[axis], most[axis], least[axis]) for axis in (2, 3)))


def _tiled(latents: NDArray[np.generic], sides: tuple[int, int]) -> NDArray[np.generic]:
    times = (-(-side // given) for side, given in zip(sides, latents.shape[2:], strict=True))
    return np.ascontiguousarray(np.tile(latents, (1, 1, *times))[:, :, : sides[0], : sides[1]])


def pieces(sample: Sample, profiles: Sequence[Profile]) -> Iterator[Sample]:
    """The sample in batches that a profile takes; none where it is of another shape."""
    number = number_of(sample, profiles)
    if number is None:
        return
    rows = len(next(iter(sample.values())))
    most = min(most[0] for _, _, most in profiles[number].shapes.values())
    for first in range(0, rows, most):
        yield {name: array[first : first + most] for name, array in sample.items()}
