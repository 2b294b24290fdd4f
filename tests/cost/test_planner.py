from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.cost.buckets import Bucket
from proteus.cost.planner import Planner, picture_buckets, scaled
from proteus.cost.vector import ResourceVector
from proteus.deployment import Deployment
from proteus.errors import MediaTooLarge
from proteus.families.family import Family, PlanRefused
from proteus.families.llava import LlavaFamily
from proteus.families.table import load_family
from proteus.limits import Tier, TierName, Tiers
from proteus.media.header import PictureHeader
from tests.families.published_qwen import PUBLISHED
from tests.families.published_tiles import PUBLISHED as TILES

DEMO = Deployment.load(Path(__file__).parents[2] / "deployments" / "demo.toml")
LLAVA = LlavaFamily.from_checkpoint(DEMO.checkpoint_path)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Family:
    return published(tmp_path_factory.mktemp("qwen"), PUBLISHED, "Qwen2-VL")


def published(folder: Path, known: Mapping[str, Mapping[str, object]], part: str) -> Family:
    """The family of the first checkpoint of `known` whose name holds `part`."""
    for file, content in next(files for name, files in known.items() if part in name).items():
        (folder / file).write_text(json.dumps(content))
    return load_family(folder)


@pytest.fixture(scope="module")
def qwen_buckets(qwen: Family) -> tuple[Planner, tuple[Bucket, ...]]:
    planner = Planner(
        family=qwen, tiers=tiers(low=tier(262_144, 256), auto=tier(4_000_000, 1024), high=tier(10**8, 3000))
    )
    return planner, picture_buckets(planner, DEMO.image)


def picture(width_px: int, height_px: int, orientation: int = 1) -> PictureHeader:
    return PictureHeader(format="jpeg", width_px=width_px, height_px=height_px, orientation=orientation)


def tiers(**caps: Tier) -> Tiers:
    return DEMO.tiers.model_copy(update=caps)


def tier(max_pixels: int = 10**9, max_visual_tokens: int = 10**6, over: str = "downscale") -> Tier:
    return Tier.model_validate({"max_pixels": max_pixels, "max_visual_tokens": max_visual_tokens, "over": over})


def test_without_tiers_a_picture_keeps_its_size() -> None:
    cost = Planner(family=LLAVA).picture(picture(4000, 3000), 1234)
    assert (cost.given_px, cost.downscaled) == ((4000, 3000), False)
    assert cost.resources == ResourceVector(
        items=1,
        media_bytes=1234,
        decoded_pixels=12_000_000,
        decode_bytes=36_000_000,
        patches=36,
        encoder_flops=cost.plan.encoder_flops,
        visual_tokens=36,
        kv_bytes=2 * 4 * 36 * 2 * 32 * 2,
    )


def test_a_turned_picture_is_planned_upright() -> None:
    cost = Planner(family=LLAVA).picture(picture(300, 100, orientation=6), 1)
    assert cost.given_px == (100, 300)


@given(st.integers(1, 6000), st.integers(1, 6000), st.integers(64, 2_000_000), st.integers(4, 4000))
@settings(max_examples=150, deadline=None)
def test_a_tier_holds_and_takes_no_more_away_than_it_must(
    qwen: Family, width_px: int, height_px: int, max_pixels: int, max_visual_tokens: int
) -> None:
    planner = Planner(family=qwen, tiers=tiers(low=tier(max_pixels, max_visual_tokens)))
    try:
        cost = planner.picture(picture(width_px, height_px), 1, tier="low")
    except (PlanRefused, MediaTooLarge):
        return
    assert cost.given_px is not None
    assert cost.given_px[0] * cost.given_px[1] <= max_pixels
    assert cost.plan.visual_tokens <= max_visual_tokens
    whole = (
        width_px * height_px <= max_pixels and qwen.plan_image(width_px, height_px).visual_tokens <= max_visual_tokens
    )
    assert cost.downscaled == (not whole)
    assert abs(cost.given_px[0] * height_px - cost.given_px[1] * width_px) <= max(width_px, height_px)


@pytest.mark.parametrize(
    ("caps", "words"),
    [
        (tier(max_pixels=100, over="refuse"), r"20x20 px at detail 'high'; limit: \[tiers.high\] max_pixels = 100"),
        (tier(max_visual_tokens=35, over="refuse"), r"36 visual tokens.*max_visual_tokens = 35"),
        (tier(max_visual_tokens=35), r"36 visual tokens.*max_visual_tokens = 35"),
    ],
)
def test_what_a_tier_refuses_names_tier_value_and_limit(caps: Tier, words: str) -> None:
    with pytest.raises(MediaTooLarge, match=words):
        Planner(family=LLAVA, tiers=tiers(high=caps)).picture(picture(20, 20), 1, tier="high")


def test_a_sliver_that_the_tier_would_shrink_to_nothing_is_over_its_pixels() -> None:
    with pytest.raises(MediaTooLarge, match=r"10000x1 px at detail 'low'; limit: \[tiers.low\] max_pixels = 5,000"):
        Planner(family=LLAVA, tiers=tiers(low=tier(max_pixels=5000))).picture(picture(10_000, 1), 1, tier="low")


def test_what_the_family_refuses_stays_refused_in_every_tier(qwen: Family) -> None:
    planner = Planner(family=qwen, tiers=tiers(low=tier(max_pixels=1000)))
    for size in ((2, 500), (10_000, 10), (0, 5)):
        with pytest.raises(PlanRefused):
            planner.picture(picture(*size), 1, tier="low")


def test_a_contract_has_one_bucket_where_the_encoder_has_one_shape() -> None:
    (bucket,) = picture_buckets(Planner(family=LLAVA, tiers=DEMO.tiers), DEMO.image)
    assert bucket.label == "96x96 tiles"


@given(st.integers(8, 3000), st.integers(8, 3000), st.sampled_from(["low", "auto", "high"]))
@settings(max_examples=150, deadline=None)
def test_every_picture_within_the_contract_falls_into_one_of_its_buckets(
    qwen_buckets: tuple[Planner, tuple[Bucket, ...]], width_px: int, height_px: int, name: TierName
) -> None:
    planner, buckets = qwen_buckets
    short_px, long_px = sorted((width_px, height_px))
    if long_px > DEMO.image.max_aspect_ratio * short_px:
        return
    try:
        cost = planner.picture(picture(width_px, height_px), 1, tier=name)
    except (PlanRefused, MediaTooLarge):
        return
    assert cost.bucket in buckets


def test_a_family_that_takes_tiles_of_any_size_has_few_buckets(tmp_path: Path) -> None:
    planner = Planner(family=published(tmp_path, TILES, "idefics2"))
    buckets = picture_buckets(planner, DEMO.image)
    assert len(buckets) < 40
    for size in ((640, 480), (3778, 6616), (1310, 1407), (3199, 7812), (8, 8), (4000, 200)):
        assert planner.picture(picture(*size), 1).bucket in buckets


def test_buckets_end_where_the_contract_ends(qwen_buckets: tuple[Planner, tuple[Bucket, ...]]) -> None:
    planner, buckets = qwen_buckets
    most = planner.tiers.high.max_visual_tokens if planner.tiers is not None else 0
    assert [bucket.cols for bucket in buckets] == sorted(bucket.cols for bucket in buckets)
    assert buckets[-2].cols < 4 * most <= buckets[-1].cols  # four patches a token


def test_text_and_answer_are_reserved_whole() -> None:
    assert Planner(family=LLAVA, kv_value_bytes=4).text(10, 20) == ResourceVector(
        requests=1, text_tokens=10, output_tokens=20, kv_bytes=2 * 4 * 30 * 2 * 32 * 4
    )


def test_a_scaled_size_never_grows_over_the_cap() -> None:
    assert scaled((4000, 3000), 0.5) == (2000, 1500)
    assert scaled((3, 1), 0.9) == (2, 0)
