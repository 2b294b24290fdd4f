"""The contract that is published is the one that is enforced, and every key of it is explained."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from math import floor, isqrt
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from proteus import configs
from proteus.client.contract import read_contract
from proteus.contract import Shapes
from proteus.deployment import Deployment
from proteus.errors import InvalidMedia, InvalidPicture, MediaTooLarge, ProteusError
from proteus.limits import DrawTables, LimitTables, Resources, Section, shown
from proteus.limits_page import described, markdown
from proteus.limits_published import (
    Contract,
    DrawContract,
    contract_of,
    draw_from_published,
    from_published,
    published,
    published_of_draw,
)
from proteus.media.accept import accept_audio, accept_picture, accept_video, check_count
from proteus.media.header import AudioHeader, PictureHeader, VideoHeader
from proteus.media.sampling import sample_frames

ROOT = Path(__file__).parent.parent
EXPORTS = configs.Exports(reads=Shapes(image_size_px=48, visual_tokens=9, feature_width=32, hidden_size=64))


def changed(deployment: Deployment, table: str, **changes: Any) -> Deployment:
    return deployment.model_copy(update={table: getattr(deployment, table).model_copy(update=changes)})


def reads_everything() -> Deployment:
    """The demo, if its checkpoint read video and audio."""
    demo = Deployment.load(ROOT / "deployments" / "demo.toml")
    return changed(changed(demo, "video", formats=["mp4"]), "audio", formats=["wav"])


DEPLOYMENT = reads_everything()
DRAW = DrawTables.model_validate(DEPLOYMENT, from_attributes=True).draw


def as_rendered(deployment: Deployment) -> dict[str, str]:
    """The parameters of `chat` as Triton reads them."""
    config = text_format.Parse(configs.render(deployment, EXPORTS)["chat"], model_config_pb2.ModelConfig())
    return {key: value.string_value for key, value in config.parameters.items()}


PARAMETERS = as_rendered(DEPLOYMENT)


# A medium that measures the given number and is unremarkable otherwise.


def picture(num_bytes: int = 1_000, width_px: int = 512, height_px: int = 512, num_frames: int = 1) -> None:
    header = PictureHeader(format="png", width_px=width_px, height_px=height_px, num_frames=num_frames)
    accept_picture(header, num_bytes, DEPLOYMENT.image)


def video(num_bytes: int = 1_000, width_px: int = 64, height_px: int = 64, duration_s: float = 1.0) -> None:
    facts = {"width_px": width_px, "height_px": height_px, "duration_s": duration_s}
    accept_video(VideoHeader(format="mp4", num_frames=24, codec="avc1", **facts), num_bytes, DEPLOYMENT.video)


def audio(num_bytes: int = 1_000, rate_hz: int = 16_000, channels: int = 1, duration_s: float = 1.0) -> None:
    header = AudioHeader(
        format="wav", sample_rate_hz=rate_hz, channels=channels, duration_s=duration_s, codec="pcm_s16le"
    )
    accept_audio(header, num_bytes, DEPLOYMENT.audio)


def rectangle(pixels: int) -> tuple[int, int]:
    """The sides of the least elongated rectangle of so many pixels."""
    width_px = next(width for width in range(isqrt(pixels), 0, -1) if pixels % width == 0)
    return width_px, pixels // width_px


def squarish_over(pixels: int) -> tuple[int, int]:
    """The smallest rectangle over so many pixels that is not elongated."""
    found = (rectangle(more) for more in count(pixels + 1))
    return next((width_px, height_px) for width_px, height_px in found if height_px < 2 * width_px)


def with_side(side_px: int) -> tuple[int, int]:
    """The smallest rectangle with so long a side."""
    return side_px, max(DEPLOYMENT.image.min_side_px, -int(-side_px // DEPLOYMENT.image.max_aspect_ratio))


def elongated(long_px: float) -> tuple[int, int]:
    return floor(long_px), DEPLOYMENT.image.min_side_px


def frame(sides: tuple[int, int]) -> None:
    video(width_px=sides[0], height_px=sides[1])


def sides(sides: tuple[int, int]) -> None:
    picture(width_px=sides[0], height_px=sides[1])


@dataclass(frozen=True, kw_only=True)
class Enforced:
    """How to be exactly at a limit, how to be on its wrong side, and what that is told."""

    at: Callable[[Any], None]
    beyond: Callable[[Any], None]
    error: type[ProteusError] = MediaTooLarge


def no_more_than(measure: Callable[[Any], None], error: type[ProteusError] = MediaTooLarge) -> Enforced:
    return Enforced(at=measure, beyond=lambda limit: measure(limit + 1), error=error)


IMAGE_SHORT_PX = DEPLOYMENT.image.min_side_px
ENFORCED: Mapping[str, Enforced] = {
    "image.max_bytes": no_more_than(lambda n: picture(num_bytes=n)),
    "image.max_pixels": Enforced(at=lambda n: sides(rectangle(n)), beyond=lambda n: sides(squarish_over(n))),
    "image.min_side_px": Enforced(at=lambda n: sides((n, n)), beyond=lambda n: sides((n, n - 1)), error=InvalidPicture),
    "image.max_side_px": no_more_than(lambda n: sides(with_side(n))),
    "image.max_aspect_ratio": Enforced(
        at=lambda n: sides(elongated(n * IMAGE_SHORT_PX)),
        beyond=lambda n: sides(elongated(n * IMAGE_SHORT_PX + 1)),
        error=InvalidPicture,
    ),
    "image.max_pictures": no_more_than(lambda n: check_count(n, DEPLOYMENT.image)),
    "image.max_animation_frames": no_more_than(lambda n: picture(num_frames=n)),
    "video.max_bytes": no_more_than(lambda n: video(num_bytes=n)),
    "video.max_seconds": Enforced(at=lambda n: video(duration_s=n), beyond=lambda n: video(duration_s=n + 0.001)),
    "video.max_frame_pixels": Enforced(at=lambda n: frame(rectangle(n)), beyond=lambda n: frame(squarish_over(n))),
    "video.max_videos": no_more_than(lambda n: check_count(n, DEPLOYMENT.video)),
    "audio.max_bytes": no_more_than(lambda n: audio(num_bytes=n)),
    "audio.max_seconds": Enforced(at=lambda n: audio(duration_s=n), beyond=lambda n: audio(duration_s=n + 0.001)),
    "audio.min_sample_rate_hz": Enforced(
        at=lambda n: audio(rate_hz=n), beyond=lambda n: audio(rate_hz=n - 1), error=InvalidMedia
    ),
    "audio.max_sample_rate_hz": no_more_than(lambda n: audio(rate_hz=n), error=InvalidMedia),
    "audio.max_channels": no_more_than(lambda n: audio(channels=n)),
    "audio.max_clips": no_more_than(lambda n: check_count(n, DEPLOYMENT.audio)),
}
SAMPLED = {"video.sample_frames_per_s", "video.max_frames"}  # decide what is read of a video, refuse none


def is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


@pytest.mark.parametrize("key", ENFORCED)
def test_published_number_is_the_one_enforced(key: str) -> None:
    number = json.loads(PARAMETERS[key])
    ENFORCED[key].at(number)
    with pytest.raises(ENFORCED[key].error) as caught:
        ENFORCED[key].beyond(number)
    table, _, name = key.partition(".")
    assert f"limit: [{table}] {name} = {shown(number)};" in str(caught.value)


def test_published_rate_and_cap_are_those_of_the_sampling() -> None:
    rate, most = (json.loads(PARAMETERS[f"video.{name}"]) for name in ("sample_frames_per_s", "max_frames"))
    video = DEPLOYMENT.video

    def taken(duration_s: float) -> int:
        header = VideoHeader(
            format="mp4", width_px=8, height_px=8, num_frames=100_000, duration_s=duration_s, codec="avc1"
        )
        return len(sample_frames(header, frames_per_s=video.sample_frames_per_s, max_frames=video.max_frames))

    assert taken(most / rate) == taken(most / rate + 100) == most
    assert taken((most - 1) / rate) == most - 1


def test_every_number_of_the_media_tables_is_tested_for_being_enforced() -> None:
    media = {key for key in PARAMETERS if key.split(".")[0] in ("image", "video", "audio")}
    assert {key for key in media if is_number(PARAMETERS[key])} == ENFORCED.keys() | SAMPLED


# The round trip.


def test_contract_comes_back_from_the_rendered_parameters() -> None:
    assert from_published(PARAMETERS) == contract_of(DEPLOYMENT)
    assert "deployment" in PARAMETERS


def test_client_reads_the_same_contract() -> None:
    assert read_contract(PARAMETERS) == contract_of(DEPLOYMENT).model_dump(exclude_none=True)


def leaves(table: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        elif value is not None:
            yield prefix + key


@pytest.mark.parametrize("table", ["image", "video", "audio", "tiers", "text", "admission"])
def test_every_key_of_the_table_is_published(table: str) -> None:
    expected = set(leaves(getattr(DEPLOYMENT, table).model_dump(), f"{table}."))
    assert expected == {key for key in PARAMETERS if key.startswith(f"{table}.")}


def test_nothing_else_is_published() -> None:
    tables = {"image", "video", "audio", "tiers", "text", "admission"}
    others = {key for key in published(DEPLOYMENT) if key.split(".")[0] not in tables}
    assert others == {"fetch.enabled", "fetch.hosts", "llm.context_tokens"}


def test_internal_addresses_are_not_told() -> None:
    fetch = DEPLOYMENT.fetch.model_copy(update={"hosts": ["media.example.com"], "private_networks": ["10.7.0.0/16"]})
    parameters = as_rendered(DEPLOYMENT.model_copy(update={"fetch": fetch}))
    assert (parameters["fetch.enabled"], parameters["fetch.hosts"]) == ("true", '["media.example.com"]')
    assert "10.7" not in str(parameters)
    assert PARAMETERS["fetch.enabled"] == "false"


@given(
    hosts=st.lists(st.from_regex(r"\A(\*\.)?[a-z0-9-]{1,9}(\.[a-z0-9-]{1,9}){0,2}\Z"), max_size=3),
    seconds=st.floats(min_value=1e-3, max_value=1e6),
    requests=st.none() | st.integers(1, 2**63),
)
@settings(max_examples=30)
def test_any_contract_survives_the_round_trip(hosts: list[str], seconds: float, requests: int | None) -> None:
    capacity = Resources(requests=requests)
    deployment = changed(DEPLOYMENT, "admission", capacity=capacity, request=Resources())
    deployment = changed(changed(deployment, "fetch", hosts=hosts), "video", max_seconds=seconds)
    assert from_published(as_rendered(deployment)) == contract_of(deployment)


def test_contract_of_what_draws_comes_back_from_its_parameters() -> None:
    parameters = published_of_draw(DRAW)
    assert draw_from_published({**parameters, "deployment": "../d.toml"}) == DrawContract(draw=DRAW)
    assert set(parameters) == set(leaves(DRAW.model_dump(), "draw."))
    bare = DRAW.model_copy(
        update={"admission": DRAW.admission.model_copy(update={"capacity": Resources(), "request": Resources()})}
    )
    assert draw_from_published(published_of_draw(bare)).draw == bare


@pytest.mark.parametrize(
    ("key", "text"), [("image.max_bytes", None), ("image.max_bytes", "many"), ("image.max_byte", "7")]
)
def test_parameters_that_are_no_whole_contract_are_refused(key: str, text: str | None) -> None:
    parameters = {**PARAMETERS, key: text}
    with pytest.raises(ValueError, match=key):
        from_published({name: value for name, value in parameters.items() if value is not None})


# What a person reads.


def test_document_is_up_to_date() -> None:
    assert (ROOT / "docs" / "limits.md").read_text(encoding="utf-8") == markdown()


@pytest.mark.parametrize("tables", [LimitTables, DrawTables, Contract, DrawContract])
def test_every_key_has_a_meaning(tables: type[Section]) -> None:
    for table in described(tables):
        assert table.about.endswith("."), table.name
        assert [entry.key for entry in table.entries if not entry.meaning] == [], table.name


def test_every_published_key_is_described() -> None:
    known = {
        f"{table.name}.{entry.key}"
        for contract in (Contract, DrawContract)
        for table in described(contract)
        for entry in table.entries
    }
    assert published(DEPLOYMENT).keys() | published_of_draw(DRAW).keys() <= known


@pytest.mark.parametrize(
    ("key", "values", "unit"),
    [
        ("image.max_bytes", "whole number > 0", "bytes"),
        ("image.max_aspect_ratio", "number ≥ 1", ""),
        ("image.animation", "`first_frame`, `refuse`", ""),
        ("video.sample_frames_per_s", "number > 0", "frames/s"),
        ("fetch.ports", "list of whole number ≥ 1 and ≤ 65535", ""),
        ("fetch.hosts", "list of text", ""),
        ("admission.capacity.decoded_pixels", "whole number > 0; may be left out", "px"),
        ("admission.max_wait_ms", "whole number > 0", "ms"),
        ("draw.max_steps", "whole number > 0 and ≤ 1000", ""),
        ("draw.max_previews_per_s", "number > 0", "previews/s"),
        ("denoiser.aging_ms", "whole number ≥ 0", "ms"),
    ],
)
def test_description_tells_values_and_unit(key: str, values: str, unit: str) -> None:
    tables = [*described(LimitTables), *described(DrawTables)]
    entries = {f"{table.name}.{entry.key}": entry for table in tables for entry in table.entries}
    assert (entries[key].values, entries[key].unit) == (values, unit)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (10_485_760, "10,485,760"),
        (20.0, "20"),
        (20.5, "20.5"),
        (True, "true"),
        (False, "false"),
        ([], "none"),
        (["png", "jpeg"], "png, jpeg"),
        ([443, 8443], "443, 8443"),
        ("refuse", "refuse"),
    ],
)
def test_value_is_shown_in_one_form(value: object, text: str) -> None:
    assert shown(value) == text
