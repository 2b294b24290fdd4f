"""The media contract of a deployment: what is accepted, how much of it, what is made smaller and what is refused.

These are tables of the deployment file (`proteus.deployment`). The server enforces them, publishes them as parameters
of `chat`, and `proteus contract` prints them: one number, read once.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

PictureFormat = Literal["png", "jpeg", "webp", "gif", "bmp", "tiff", "heic", "avif"]
VideoFormat = Literal["mp4", "mov", "webm", "avi"]
AudioFormat = Literal["wav", "flac", "mp3", "ogg"]
TierName = Literal["low", "auto", "high"]
LatencyClass = Literal["text", "media", "batch"]
Count = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """A table of the file: frozen, strict about types, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ImageLimits(Section):
    formats: Annotated[list[PictureFormat], Field(min_length=1)]
    max_bytes: Count  # one encoded picture
    max_pixels: Count  # as stored; more is refused before a pixel is decoded
    min_side_px: Count
    max_side_px: Count
    max_aspect_ratio: Annotated[float, Field(ge=1.0, allow_inf_nan=False)]  # long side / short side
    max_pictures: Count  # in one request
    animation: Literal["first_frame", "refuse"]
    max_animation_frames: Count
    background: Annotated[str, Field(pattern=r"^#[0-9a-fA-F]{6}$")]  # shown through transparency

    @model_validator(mode="after")
    def sides_leave_room(self) -> ImageLimits:
        if self.min_side_px > self.max_side_px:
            raise ValueError(f"min_side_px = {self.min_side_px} is over max_side_px = {self.max_side_px}")
        return self

    @property
    def background_rgb(self) -> tuple[int, int, int]:
        """The background as three bytes."""
        red, green, blue = bytes.fromhex(self.background[1:])
        return red, green, blue


class VideoLimits(Section):
    formats: list[VideoFormat]  # empty: no video is accepted
    max_bytes: Count
    max_seconds: Positive
    max_frame_pixels: Count  # of one frame
    max_videos: Count  # in one request
    sample_frames_per_s: Positive  # frames given to the encoder, evenly spread …
    max_frames: Count  # … and never more than this


class AudioLimits(Section):
    formats: list[AudioFormat]  # empty: no audio is accepted
    max_bytes: Count
    max_seconds: Positive
    min_sample_rate_hz: Count
    max_sample_rate_hz: Count
    max_channels: Count
    max_clips: Count  # in one request


class Tier(Section):
    """A quality level, OpenAI's `detail`. `over` says what happens to a picture above either cap."""

    max_pixels: Count
    max_visual_tokens: Count  # of one picture
    over: Literal["downscale", "refuse"]


class Tiers(Section):
    low: Tier
    auto: Tier  # of a picture that names none
    high: Tier


class FetchLimits(Section):
    """Pictures by URL. Off while `hosts` is empty."""

    hosts: list[Annotated[str, Field(pattern=r"^(\*\.)?[a-z0-9-]+(\.[a-z0-9-]+)*$")]]  # "*.example.com": any below it
    schemes: list[Literal["https", "http"]]
    ports: list[Annotated[int, Field(ge=1, le=65535)]]
    private_networks: list[str]  # CIDR; addresses that are not public are refused unless in one of these
    max_redirects: NotNegative
    connect_timeout_ms: Count
    total_timeout_ms: Count
    max_at_once: Count

    @field_validator("private_networks")
    @classmethod
    def are_networks(cls, values: list[str]) -> list[str]:
        for value in values:
            ipaddress.ip_network(value)  # raises ValueError naming the value
        return values


class DecodeLimits(Section):
    """Processes that decode; one that runs over a limit is replaced and costs its request."""

    workers: Count  # for each instance of image_preprocess
    memory_bytes: Count  # address space of one worker above its own start
    timeout_ms: Count  # one picture


class Resources(Section):
    """Amounts of the resource vector; a key left out is not limited. Names are those of `proteus.cost.vector`."""

    requests: Count | None = None
    items: Count | None = None
    media_bytes: Count | None = None
    decoded_pixels: Count | None = None
    decode_bytes: Count | None = None
    frames: Count | None = None
    media_ms: Count | None = None
    patches: Count | None = None
    encoder_flops: Count | None = None
    visual_tokens: Count | None = None
    text_tokens: Count | None = None
    output_tokens: Count | None = None
    kv_bytes: Count | None = None
    cross_kv_bytes: Count | None = None

    def named(self) -> Iterator[tuple[str, int]]:
        """(name, limit) of every resource that is limited."""
        return ((name, value) for name, value in self if value is not None)


class ClassQueue(Section):
    max_queue: NotNegative  # waiting requests; the next one is refused with a hint when to come back
    weight: Count  # share of admissions while others wait as well


class ClassQueues(Section):
    text: ClassQueue  # no media
    media: ClassQueue
    batch: ClassQueue  # those who said they can wait


class AdmissionLimits(Section):
    capacity: Resources  # held by all admitted requests together
    request: Resources  # of one request; more is refused at once, whatever is free
    queues: ClassQueues
    max_wait_ms: Count  # in a queue; a request's own deadline may be shorter
