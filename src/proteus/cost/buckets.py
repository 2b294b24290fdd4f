"""Shape buckets: the few shapes that an encoder is run with, so that media of different sizes can share a batch.

Tiles and audio windows have one shape in a family: a bucket of their own, and nothing is padded. Patch grids of any
size, and the tiles of a family that takes any size, become sequences, padded at the end (the encoder masks the padding)
to the next length of a ladder. Only media of one bucket share a batch, so a large picture never pads a small one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from proteus.families.family import EncoderInput, MediaPlan

LADDER_START = 64  # patches of the shortest sequence
STEPS_PER_DOUBLING = 4  # at most 1 - 2**(-1/4) = 16 % of a sequence is padding, rounding to LADDER_START apart
SIZES_MP = (0.25, 1, 4, 16, 64, 256)  # upper bounds of the size buckets
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """One encoder shape. `rows` x `cols`: px of a tile, mel bins and frames of a window, 1 and patches."""

    kind: Literal["tiles", "grid", "mel"]
    rows: int
    cols: int

    @property
    def label(self) -> str:
        """As tables and metrics name it."""
        return f"{self.cols} patches" if self.kind == "grid" else f"{self.cols}x{self.rows} {self.kind}"


def size_bucket(pixels: int) -> str:
    """Of a stored picture, as reports and metrics name it: the least of `SIZES_MP` that holds its pixels.

    What decoding costs goes by it; what encoding costs, by the shape bucket.
    """
    return next((f"{size:g} MP" for size in SIZES_MP if pixels <= size * 1e6), f"over {SIZES_MP[-1]} MP")


def ladder() -> Iterator[int]:
    """Sequence lengths, each a multiple of LADDER_START, growing by a quarter of a doubling."""
    last, step = 0, 0
    while True:
        exact = LADDER_START * 2 ** (step / STEPS_PER_DOUBLING)
        length = -(-round(exact, 6) // LADDER_START) * LADDER_START
        if length > last:
            yield int(length)
            last = int(length)
        step += 1


def bucket_of(encoder_input: EncoderInput) -> Bucket:
    """The bucket that takes this input; every input has one."""
    patches = sequence_patches(encoder_input)
    if patches is None:
        return Bucket(encoder_input.kind, encoder_input.rows, encoder_input.cols)
    return Bucket("grid", 1, next(length for length in ladder() if length >= patches))


def sequence_patches(shape: EncoderInput) -> int | None:
    """Patches of one grid, or of one tile that may have any size; None where the shape is the family's own."""
    if shape.kind == "grid":
        return shape.rows * shape.cols
    return (shape.rows // shape.patch_px) * (shape.cols // shape.patch_px) if shape.patch_px else None


def buckets_for(plans: Iterable[MediaPlan]) -> tuple[Bucket, ...]:
    """Every bucket up to the largest of `plans`: the shapes to compile for a contract."""
    largest = sorted({bucket_of(plan.encoder_input) for plan in plans})
    grids = [bucket for bucket in largest if bucket.kind == "grid"]
    fixed = [bucket for bucket in largest if bucket.kind != "grid"]
    if not grids:
        return tuple(fixed)
    lengths = []
    for length in ladder():
        lengths.append(Bucket("grid", 1, length))
        if lengths[-1] == grids[-1]:
            return (*fixed, *lengths)
    raise AssertionError  # the ladder has no end


def patches_used(plan: MediaPlan) -> int:
    """Patches (or audio frames) that the medium itself fills."""
    patches = sequence_patches(plan.encoder_input)
    return plan.patches if patches is None else plan.encoder_input.count * patches


def patches_allocated(plan: MediaPlan) -> int:
    """Patches that its bucket runs for it."""
    shape = plan.encoder_input
    return plan.patches if sequence_patches(shape) is None else shape.count * bucket_of(shape).cols


def padding_waste(plans: Sequence[MediaPlan]) -> float:
    """1 - used / allocated over all `plans`; 0.0 for none."""
    allocated = sum(map(patches_allocated, plans))
    return 1 - sum(map(patches_used, plans)) / allocated if allocated else 0.0


def by_bucket(items: Iterable[tuple[Item, MediaPlan]]) -> Mapping[Bucket, Sequence[Item]]:
    """Items that may share a batch, in their order."""
    groups: dict[Bucket, list[Item]] = {}
    for item, plan in items:
        groups.setdefault(bucket_of(plan.encoder_input), []).append(item)
    return groups
