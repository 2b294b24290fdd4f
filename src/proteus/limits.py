"""The media contract of a deployment: what is accepted, how much of it, what is made smaller and what is refused.

These are tables of the deployment file (`proteus.deployment`). The server enforces them, publishes some of them
(`proteus.limits_published`), and `proteus contract` prints those: one number, read once.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

PictureFormat = Literal["png", "jpeg", "webp", "gif", "bmp", "tiff", "heic", "avif"]
VideoFormat = Literal["mp4", "mov", "webm", "avi"]
AudioFormat = Literal["wav", "flac", "mp3", "ogg"]
TierName = Literal["low", "auto", "high"]
LatencyClass = Literal["text", "media", "batch"]
SamplerName = Literal["euler", "ddim", "heun", "dpmpp_2m"]
DrawnFormat = Literal["png", "jpeg", "webp"]
PreviewBy = Literal["linear", "decoder"]
Count = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
MAX_STOPS = 64  # stop strings of any deployment: each is looked for at every token, while all other answers wait


class Section(BaseModel):
    """A table of the file: frozen, strict about types, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ImageLimits(Section):
    """Pictures. All of it is decided from the header, before a pixel is decoded."""

    formats: list[PictureFormat] = Field(min_length=1, description="accepted; told from the content, never the name")
    max_bytes: Count = Field(description="one encoded picture")
    max_pixels: Count = Field(description="width x height, as stored")
    min_side_px: Count = Field(description="shorter side")
    max_side_px: Count = Field(description="longer side")
    max_aspect_ratio: float = Field(ge=1.0, allow_inf_nan=False, description="longer side / shorter side")
    max_pictures: Count = Field(description="in one request")
    animation: Literal["first_frame", "refuse"] = Field(description="what becomes of a file with several frames")
    max_animation_frames: Count = Field(description="in one file, whatever `animation` says")
    background: str = Field(pattern=r"^#[0-9a-fA-F]{6}$", description="colour shown through transparency")

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
    """Videos. None is read while `formats` is empty."""

    formats: list[VideoFormat] = Field(description="accepted; told from the content, never the name")
    max_bytes: Count = Field(description="one encoded video")
    max_seconds: Positive = Field(description="one video")
    max_frame_pixels: Count = Field(description="width x height of one frame")
    max_videos: Count = Field(description="in one request")
    sample_frames_per_s: Positive = Field(description="frames given to the encoder, evenly spread")
    max_frames: Count = Field(description="given to the encoder; a longer video is sampled more thinly")


class AudioLimits(Section):
    """Audio clips. None is read while `formats` is empty."""

    formats: list[AudioFormat] = Field(description="accepted; told from the content, never the name")
    max_bytes: Count = Field(description="one encoded clip")
    max_seconds: Positive = Field(description="one clip")
    min_sample_rate_hz: Count = Field(description="samples per second")
    max_sample_rate_hz: Count = Field(description="samples per second")
    max_channels: Count = Field(description="in one clip")
    max_clips: Count = Field(description="in one request")

    @model_validator(mode="after")
    def rates_leave_room(self) -> AudioLimits:
        if self.min_sample_rate_hz > self.max_sample_rate_hz:
            raise ValueError(
                f"min_sample_rate_hz = {self.min_sample_rate_hz} is over max_sample_rate_hz = {self.max_sample_rate_hz}"
            )
        return self


class Tier(Section):
    """A quality level, OpenAI's `detail`."""

    max_pixels: Count = Field(description="of one picture")
    max_visual_tokens: Count = Field(description="of one picture")
    over: Literal["downscale", "refuse"] = Field(description="what becomes of a picture above either cap")


class Tiers(Section):
    """Quality levels of a picture, OpenAI's `detail`."""

    low: Tier = Field(description="Pictures asked for with the `detail` low: a rough look that costs little.")
    auto: Tier = Field(description="Pictures that name no `detail`, or auto.")
    high: Tier = Field(description="Pictures asked for with the `detail` high.")


class FetchLimits(Section):
    """Pictures by URL. Off while `hosts` is empty."""

    hosts: list[Annotated[str, Field(pattern=r"^(\*\.)?[a-z0-9-]+(\.[a-z0-9-]+)*$")]] = Field(
        description="allowed; `*.example.com` is any host below it"
    )
    schemes: list[Literal["https", "http"]] = Field(description="allowed")
    ports: list[Annotated[int, Field(ge=1, le=65535)]] = Field(description="allowed")
    private_networks: list[str] = Field(description="CIDR; the only addresses allowed that are not public")
    max_redirects: NotNegative = Field(description="followed, each checked like the first URL")
    connect_timeout_ms: Count = Field(description="to open a connection")
    total_timeout_ms: Count = Field(description="one picture, redirects included")
    max_at_once: Count = Field(description="pictures being fetched")

    @property
    def enabled(self) -> bool:
        """Whether pictures may be given by URL."""
        return bool(self.hosts)

    @field_validator("hosts")
    @classmethod
    def are_names(cls, values: list[str]) -> list[str]:
        for value in values:
            if value.rpartition(".")[2].isdigit():
                raise ValueError(f"{value} is an address, and only names are ever allowed")
        return values

    @field_validator("private_networks")
    @classmethod
    def are_networks(cls, values: list[str]) -> list[str]:
        for value in values:
            ipaddress.ip_network(value)  # raises ValueError naming the value
        return values


class DecodeLimits(Section):
    """Processes that decode; one that runs over a limit is replaced and costs its request."""

    workers: Count = Field(description="for each instance of image_preprocess")
    memory_bytes: Count = Field(description="address space of one worker, above its own start")
    timeout_ms: Count = Field(description="one picture")


class TextLimits(Section):
    """The request document."""

    max_request_bytes: Count = Field(description="the JSON document, base64 pictures included")
    max_messages: Count = Field(description="in one request")
    max_parts: Count = Field(description="texts and pictures of all messages together")
    max_text_bytes: Count = Field(description="all text parts together")
    default_max_tokens: Count = Field(description="longest answer of a request that sets none")
    max_stop_strings: Count = Field(le=MAX_STOPS, description="in one request")
    max_stop_bytes: Count = Field(description="one stop string")
    max_choices: Count = Field(description="answers to one request, `n`; each takes a place of its own")


class Resources(Section):
    """Amounts of the resource vector; a key left out is not limited. Names are those of `proteus.cost.vector`."""

    requests: Count | None = Field(None, description="each counts as one")
    items: Count | None = Field(None, description="media")
    media_bytes: Count | None = Field(None, description="encoded")
    decoded_pixels: Count | None = Field(None, description="of all pictures and sampled frames")
    decode_bytes: Count | None = Field(None, description="held while decoding")
    frames: Count | None = Field(None, description="of video and animation")
    media_ms: Count | None = Field(None, description="of video and audio")
    patches: Count | None = Field(None, description="embedded by the encoder")
    encoder_flops: Count | None = Field(None, description="of the encoder")
    visual_tokens: Count | None = Field(None, description="of the prompt")
    text_tokens: Count | None = Field(None, description="of the prompt, wrapper tokens included")
    output_tokens: Count | None = Field(None, description="the most that may be generated")
    kv_bytes: Count | None = Field(None, description="self-attention, prompt and output")
    cross_kv_bytes: Count | None = Field(None, description="cross-attention")
    images: Count | None = Field(None, description="to be drawn")
    evaluations: Count | None = Field(None, description="of the denoiser: rows of its batches, over all steps")
    token_passes: Count | None = Field(None, description="latent tokens x evaluations")

    def named(self) -> list[tuple[str, int]]:
        """(name, limit) of every resource that is limited."""
        return [(name, value) for name, value in vars(self).items() if value is not None]


class ClassQueue(Section):
    """The queue of one latency class."""

    max_queue: NotNegative = Field(description="waiting requests; one more is refused with a hint when to come back")
    weight: Count = Field(description="share of the admitted cost while other classes wait as well")


class ClassQueues(Section):
    """A queue for each latency class."""

    text: ClassQueue = Field(description="Requests without media.")
    media: ClassQueue = Field(description="Requests with media.")
    batch: ClassQueue = Field(description="Requests that said they can wait.")

    def named(self) -> tuple[tuple[LatencyClass, ClassQueue], ...]:
        """The queues in order of preference."""
        return ("text", self.text), ("media", self.media), ("batch", self.batch)


class DrawQueues(Section):
    """A queue for each latency class of requests that draw."""

    media: ClassQueue = Field(description="Requests to draw.")
    batch: ClassQueue = Field(description="Requests to draw that said they can wait.")

    def named(self) -> tuple[tuple[LatencyClass, ClassQueue], ...]:
        """The queues in order of preference."""
        return ("media", self.media), ("batch", self.batch)


class DrawAdmission(Section):
    """What requests that draw reserve before they start. A resource that is left out is not limited."""

    capacity: Resources = Field(description="Held by all admitted requests together.")
    request: Resources = Field(description="Of one request; more is refused at once, whatever is free.")
    queues: DrawQueues = Field(description="Of requests that wait for capacity.")
    max_open_bytes: Count = Field(description="of the documents of all open requests")
    max_wait_ms: Count = Field(description="in a queue; a request's own deadline may be shorter")


class AdmissionLimits(Section):
    """What requests reserve before they start. A resource that is left out is not limited."""

    capacity: Resources = Field(description="Held by all admitted requests together.")
    request: Resources = Field(description="Of one request; more is refused at once, whatever is free.")
    queues: ClassQueues = Field(description="Of requests that wait for capacity.")
    max_open_bytes: Count = Field(description="of all open requests; a URL counts as the largest picture")
    max_wait_ms: Count = Field(description="in a queue; a request's own deadline may be shorter")


class Schedule(Section):
    """Who gets the language model's iterations. docs/operating.md says which policy suits which traffic."""

    policy: Literal["auto", "pools", "ratio", "priority", "fifo"] = Field(
        description="`pools` keeps text and media apart, `ratio` bounds media among all, `priority` only orders, "
        "`fifo` does nothing of it; `auto` takes `pools` or `ratio` by the share of media among recent requests"
    )
    iteration_tokens: Count = Field(description="computed in one iteration: one for each decode, the rest is prefill")
    max_media_prefills: Count = Field(description="requests with media that prefill in one iteration")
    text_slots: Count = Field(description="`pools`: slots for requests without media; the others are for media")
    max_media_slots: Count = Field(description="`ratio`: slots that requests with media may have at once")
    media_aging_ms: NotNegative = Field(description="waited by a media request before it goes ahead of newer text")
    batch_aging_ms: NotNegative = Field(description="waited by a batch request before it goes ahead of newer text")


class PrefixCache(Section):
    """Keys and values of prompts, kept for requests that begin alike in the same cache scope."""

    block_tokens: Count = Field(description="kept as a whole; what a prompt has beyond its last full block is not")
    max_bytes: NotNegative = Field(description="kept; 0 turns the cache off")
    max_age_s: Positive = Field(description="kept after the last use")


class Llm(Section):
    """The language model."""

    slots: Count = Field(description="answers generated at once")
    context_tokens: Count = Field(description="prompt and answer together, visual tokens included")
    max_queue: Count = Field(description="waiting for a slot; one more is refused")
    threads: Count = Field(description="of the one instance")
    schedule: Schedule = Field(description="Who gets the language model's iterations.")
    prefix_cache: PrefixCache = Field(description="Keys and values of prompts that begin alike in one cache scope.")

    @model_validator(mode="after")
    def schedule_fits_the_slots(self) -> Llm:
        schedule = self.schedule
        if schedule.iteration_tokens <= self.slots:
            raise ValueError(
                f"schedule.iteration_tokens = {schedule.iteration_tokens} leaves no prefill beside "
                f"slots = {self.slots} decodes"
            )
        if schedule.policy in ("pools", "auto") and schedule.text_slots >= self.slots:
            raise ValueError(
                f"schedule.text_slots = {schedule.text_slots} leaves media none of slots = {self.slots} "
                f"with policy = {schedule.policy}; ratio, priority and fifo set none apart"
            )
        if schedule.max_media_slots > self.slots:
            raise ValueError(f"schedule.max_media_slots = {schedule.max_media_slots} is over slots = {self.slots}")
        return self

    @model_validator(mode="after")
    def a_prompt_can_fill_a_block(self) -> Llm:
        cache = self.prefix_cache
        if cache.max_bytes and cache.block_tokens >= self.context_tokens:
            raise ValueError(
                f"prefix_cache.block_tokens = {cache.block_tokens} is more than a prompt has within "
                f"context_tokens = {self.context_tokens}, and max_bytes = 0 turns the cache off"
            )
        return self


class DrawLimits(Section):
    """What may be asked of `draw`, and what is taken for a field that is left out."""

    max_request_bytes: Count = Field(description="the JSON document")
    max_prompt_bytes: Count = Field(
        description="prompt and negative prompt, each; the checkpoint's tokens limit them too"
    )
    min_side_px: Count = Field(description="shorter side")
    max_side_px: Count = Field(description="longer side")
    max_pixels: Count = Field(description="width x height of one picture")
    side_multiple_px: Count = Field(description="both sides are multiples of it; each size is a bucket of its own")
    default_size: str = Field(pattern=r"^[1-9][0-9]{0,4}x[1-9][0-9]{0,4}$", description="width x height in px")
    max_steps: Count = Field(le=1000, description="denoise steps of one picture")
    default_steps: Count = Field(description="of a request that names none")
    max_guidance: Annotated[float, Field(ge=1.0, allow_inf_nan=False)] = Field(description="guidance; 1 is none")
    default_guidance: Annotated[float, Field(ge=1.0, allow_inf_nan=False)] = Field(
        description="of a request that names none"
    )
    default_sampler: SamplerName = Field(description="of a request that names none")
    max_images: Count = Field(description="pictures of one request, `n`")
    formats: list[DrawnFormat] = Field(
        min_length=1, description="offered; the first is that of a request that names none"
    )
    default_quality: Annotated[int, Field(ge=1, le=100)] = Field(description="of JPEG and WebP")
    max_previews_per_s: Positive = Field(description="of one picture, whatever its request asks for")
    admission: DrawAdmission = Field(description="What requests that draw reserve before they start.")

    @property
    def default_px(self) -> tuple[int, int]:
        """Width and height of a picture whose request names no size."""
        width, height = map(int, self.default_size.split("x"))
        return width, height

    @model_validator(mode="after")
    def defaults_are_within_the_limits(self) -> DrawLimits:
        width_px, height_px = self.default_px
        for name, value, name_of_most, most in (
            ("min_side_px", self.min_side_px, "max_side_px", self.max_side_px),
            ("default_steps", self.default_steps, "max_steps", self.max_steps),
            ("default_guidance", self.default_guidance, "max_guidance", self.max_guidance),
            ("default_size", width_px, "max_side_px", self.max_side_px),
            ("default_size", height_px, "max_side_px", self.max_side_px),
            ("default_size", width_px * height_px, "max_pixels", self.max_pixels),
        ):
            if value > most:
                raise ValueError(f"{name} = {value} is over {name_of_most} = {most}")
        if min(width_px, height_px) < self.min_side_px:
            raise ValueError(f"default_size = {self.default_size} is under min_side_px = {self.min_side_px}")
        if width_px % self.side_multiple_px or height_px % self.side_multiple_px:
            raise ValueError(
                f"default_size = {self.default_size} is no multiple of side_multiple_px = {self.side_multiple_px}"
            )
        return self


class Denoiser(Section):
    """The denoiser's loop: which rows share a call. A row is one guidance branch of one picture."""

    max_rows: Annotated[int, Field(ge=2)] = Field(description="in one call")
    live_images: Count = Field(description="pictures of one size that take turns at once; the others wait")
    max_queue: NotNegative = Field(description="pictures that wait; one more is refused")
    aging_ms: NotNegative = Field(description="since its last step, after which a picture's bucket goes first")
    threads: Count = Field(description="of the one instance")
    nice: Annotated[int, Field(ge=0, le=19)] = Field(0, description="of its process: what has 0 gets the cores first")


class LimitTables(Section):
    """The tables of a deployment file that state limits of what is read; `proteus.deployment` adds the rest."""

    image: ImageLimits
    video: VideoLimits
    audio: AudioLimits
    tiers: Tiers
    fetch: FetchLimits
    decode: DecodeLimits
    text: TextLimits
    llm: Llm
    admission: AdmissionLimits


class DrawTables(Section):
    """The tables of a deployment file that state limits of what is drawn: all of them or none."""

    draw: DrawLimits
    denoiser: Denoiser


def shown(value: object) -> str:
    """A limit as errors and tables write it: 10,485,760; png, jpeg; 20; none."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"{value:,}".removesuffix(".0")
        case list():
            return ", ".join(map(str, value)) or "none"
        case _:
            return str(value)
