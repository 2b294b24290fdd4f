"""What a graph in a low precision may be off from float32, and by how much it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from export.precision_runs import Outputs
from proteus.errors import ProteusError
from proteus.limits_gpu import Precision


class UnsupportedPrecision(ProteusError):
    """A stage cannot be computed in the precision that the deployment file asks for. Stops the export."""

    code = "unsupported_precision"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityLimit:
    of_scale: float  # no value of an output is off by more, of the output's largest value
    cosine: float  # of an output with its float32 one, at least
    typical: float  # a value is off by no more, of a value: medians of a row, which a few large values do not move


# Two to ten times what rounding does to the demo's stages and to random weights; what overflowed is far over it.
LIMITS: Mapping[Precision, ParityLimit] = {
    "fp32": ParityLimit(of_scale=0.0, cosine=1.0, typical=0.0),
    "fp16": ParityLimit(of_scale=0.03, cosine=0.9999, typical=0.05),
    "bf16": ParityLimit(of_scale=0.15, cosine=0.999, typical=0.25),
    "fp8": ParityLimit(of_scale=0.25, cosine=0.99, typical=0.4),
}
OTHERS: Mapping[Precision, str] = {"fp16": '"bf16" or "fp32"', "bf16": '"fp16" or "fp32"', "fp8": '"fp16" or "bf16"'}
_PIXEL_SCALE = 255.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputParity:
    """One output over all samples; differences are from the float32 graph, `scale` is its largest value."""

    output: str
    max_abs_diff: float
    scale: float
    of_scale: float  # the largest ratio of any sample
    cosine: float  # the smallest of any sample
    typical: float  # the largest of any row; 0 for integers
    non_finite: int


def compare(got: Sequence[Outputs], want: Sequence[Outputs]) -> Iterator[OutputParity]:
    """Every output, over all samples."""
    for output in want[0]:
        pairs = [(one[output], other[output]) for one, other in zip(got, want, strict=True)]
        scales = [_scale(other) for _, other in pairs]
        diffs = [_diff(one, other) for one, other in pairs]
        yield OutputParity(
            output=output,
            max_abs_diff=max(diffs),
            scale=max(scales),
            of_scale=max(diff / scale if diff else 0.0 for diff, scale in zip(diffs, scales, strict=True)),
            cosine=min(_cosine(one, other) for one, other in pairs),
            typical=max(_typical(one, other) for one, other in pairs),
            non_finite=sum(int((~np.isfinite(one)).sum()) for one, _ in pairs),
        )


def check(stage: str, precision: Precision, parity: OutputParity) -> None:
    """Raises UnsupportedPrecision naming stage, number, limit and what to choose instead."""
    limit, fix = LIMITS[precision], f"choose {OTHERS.get(precision)} as precision of [gpu.{stage}]"
    what = f"{stage} in {precision}: {parity.output}"
    if parity.non_finite:
        raise UnsupportedPrecision(f"{what} has {parity.non_finite:,} values that are not finite", fix=fix)
    if parity.of_scale > limit.of_scale:
        raise UnsupportedPrecision(
            f"{what} is off by {parity.of_scale:.2%} of its scale, {parity.max_abs_diff:.3g} at most",
            limit=f"{limit.of_scale:.0%} of its scale in {precision}",
            fix=fix,
        )
    if parity.cosine < limit.cosine:
        raise UnsupportedPrecision(
            f"{what} points elsewhere: cosine {parity.cosine:.5f}", limit=f"{limit.cosine} in {precision}", fix=fix
        )
    if parity.typical > limit.typical:
        raise UnsupportedPrecision(
            f"{what} is off by {parity.typical:.0%} of what its values commonly are, beside a few large ones",
            limit=f"{limit.typical:.0%} in {precision}",
            fix=fix,
        )


def _scale(want: NDArray[np.generic]) -> float:
    if want.dtype == np.uint8:
        return _PIXEL_SCALE
    return float(np.abs(want).max()) or float(np.finfo(np.float32).smallest_normal)


def _diff(got: NDArray[np.generic], want: NDArray[np.generic]) -> float:
    """0 where neither is finite: the graph's own answer."""
    finite = np.isfinite(got) & np.isfinite(want)
    return float(np.abs(got[finite].astype(np.float64) - want[finite].astype(np.float64)).max(initial=0.0))


def _cosine(got: NDArray[np.generic], want: NDArray[np.generic]) -> float:
    """1 where both are zeros, and of what is not finite nothing is said here."""
    one, other = got.astype(np.float64).ravel(), want.astype(np.float64).ravel()
    sizes = np.sqrt(one @ one * (other @ other))
    if not np.isfinite(sizes):
        return 1.0
    return float(one @ other / sizes) if sizes else float(np.array_equal(one, other))


def _typical(got: NDArray[np.generic], want: NDArray[np.generic]) -> float:
    """Scale and cosine go by the largest values: they would hide that all others are lost."""
    if not np.issubdtype(want.dtype, np.floating):
        return 0.0
    return max((_of_median(one, other) for one, other in zip(got, want, strict=True)), default=0.0)


def _of_median(got: NDArray[np.floating], want: NDArray[np.floating]) -> float:
    counted = np.isfinite(got) & np.isfinite(want) & (want != 0)
    one, other = got[counted].astype(np.float64), want[counted].astype(np.float64)
    return float(np.median(np.abs(one - other)) / np.median(np.abs(other))) if other.size else 0.0
