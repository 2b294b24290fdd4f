"""The resource vector of a request: what admission reserves and what a bill names. Plain sums, no policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceVector:
    """Every field is a whole number that adds up over the media of a request and over requests."""

    requests: int = 0
    items: int = 0  # media
    media_bytes: int = 0  # encoded
    decoded_pixels: int = 0
    decode_bytes: int = 0  # held while decoding
    frames: int = 0  # of video and animation
    media_ms: int = 0  # of video and audio
    patches: int = 0  # embedded by the encoder
    encoder_flops: int = 0
    visual_tokens: int = 0
    text_tokens: int = 0  # wrapper tokens included
    output_tokens: int = 0  # the most that may be generated
    kv_bytes: int = 0  # self-attention, prompt and output
    cross_kv_bytes: int = 0
    images: int = 0  # to be drawn
    evaluations: int = 0  # of the denoiser: rows of its batches, over all steps
    token_passes: int = 0  # latent tokens x evaluations

    def __add__(self, other: ResourceVector) -> ResourceVector:
        return ResourceVector(**{name: getattr(self, name) + getattr(other, name) for name in NAMES})

    def __sub__(self, other: ResourceVector) -> ResourceVector:
        return ResourceVector(**{name: getattr(self, name) - getattr(other, name) for name in NAMES})

    def without_decoding(self) -> ResourceVector:
        """What is still held once every picture is encoded."""
        return replace(self, media_bytes=0, decoded_pixels=0, decode_bytes=0, patches=0, encoder_flops=0)

    def named(self) -> Iterator[tuple[str, int]]:
        """(name, value) of every field, in order."""
        return ((name, getattr(self, name)) for name in NAMES)


NAMES = tuple(field.name for field in fields(ResourceVector))  # read once: admission adds vectors all the time
