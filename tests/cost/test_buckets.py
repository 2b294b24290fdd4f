from __future__ import annotations

from dataclasses import replace
from itertools import islice, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.cost.buckets import (
    LADDER_START,
    Bucket,
    bucket_of,
    buckets_for,
    by_bucket,
    ladder,
    padding_waste,
    patches_allocated,
    patches_used,
)
from proteus.families.family import EncoderInput, MediaPlan

sides = st.integers(1, 120)


def plan(rows: int, cols: int, *, count: int = 1, kind: str = "grid") -> MediaPlan:
    return MediaPlan(
        modality="image",
        visual_tokens=rows * cols,
        wrapper_tokens=0,
        encoder_input=EncoderInput(kind=kind, count=count, rows=rows, cols=cols),  # type: ignore[arg-type]
        patches=count * rows * cols,
        encoder_flops=0,
        decode_bytes=0,
        self_kv_bytes=0,
    )


@given(sides, sides, st.integers(1, 5))
@settings(max_examples=200)
def test_every_grid_has_a_bucket_that_takes_it_and_wastes_little(rows: int, cols: int, count: int) -> None:
    given_plan = plan(rows, cols, count=count)
    bucket = bucket_of(given_plan.encoder_input)
    assert bucket.cols >= rows * cols
    assert patches_allocated(given_plan) == count * bucket.cols
    assert bucket.cols - rows * cols < max(LADDER_START, 0.2 * bucket.cols + LADDER_START)
    assert bucket in buckets_for([given_plan])


def test_the_ladder_grows_by_less_than_a_quarter_once_it_has_left_the_ground() -> None:
    lengths = list(islice(ladder(), 40))
    assert lengths[:6] == [64, 128, 192, 256, 320, 384]
    assert all(length % LADDER_START == 0 for length in lengths)
    assert all(after <= 1.25 * before + LADDER_START for before, after in pairwise(lengths))


def test_a_large_picture_never_pads_its_neighbours() -> None:
    small, large = plan(8, 8), plan(100, 100)
    alone = patches_allocated(small)
    groups = by_bucket([("small", small), ("large", large), ("small too", plan(7, 9))])
    assert groups == {Bucket("grid", 1, 64): ["small", "small too"], bucket_of(large.encoder_input): ["large"]}
    assert patches_allocated(small) + patches_allocated(large) == alone + bucket_of(large.encoder_input).cols


def test_tiles_and_windows_keep_their_one_shape() -> None:
    tiles = plan(336, 336, count=5, kind="tiles")
    assert bucket_of(tiles.encoder_input) == Bucket("tiles", 336, 336)
    assert patches_used(tiles) == patches_allocated(tiles)
    assert buckets_for([tiles, plan(80, 3000, kind="mel")]) == (Bucket("mel", 80, 3000), Bucket("tiles", 336, 336))


def test_tiles_of_any_size_are_sequences_like_grids() -> None:
    shape = EncoderInput(kind="tiles", count=5, rows=735, cols=980, patch_px=14)
    assert bucket_of(shape) == bucket_of(EncoderInput(kind="grid", count=5, rows=52, cols=70))
    tiles = replace(plan(735, 980), encoder_input=shape)
    assert (patches_used(tiles), patches_allocated(tiles)) == (5 * 52 * 70, 5 * bucket_of(shape).cols)


def test_waste_is_what_is_allocated_and_not_used() -> None:
    assert padding_waste([]) == 0.0
    assert padding_waste([plan(8, 8)]) == 0.0
    assert padding_waste([plan(6, 8), plan(8, 8)]) == 1 - (48 + 64) / 128
