"""OpenAI's document of /v1/images/generations to the request of `draw`; null is as good as a field left out.

OpenAI's words → `draw`'s words → DrawRequest, which the door's own code looks at
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from proteus.door.document import Part, check
from proteus.door.draw_request import DrawRequest
from proteus.errors import InvalidRequest
from proteus.gateway.errors import UnsupportedField
from proteus.gateway.openai.chat_fields import MAX_USER_CHARS
from proteus.gateway.openai.fields import Fields, written, wrong
from proteus.gateway.planning.artist import Artist
from proteus.limits import DrawLimits, shown

MAX_PARTIAL_IMAGES = 3
LOSSLESS_QUALITY = 100
# Fields that `draw` has by the same name: two of OpenAI's, the others ours.
SAME = (
    "prompt",
    "n",
    "seed",
    "steps",
    "guidance",
    "negative_prompt",
    "sampler",
    "first_index",
    "preview_by",
    "deadline_ms",
)
OWN = (
    "model",
    "size",
    "output_format",
    "output_compression",
    "background",
    "stream",
    "partial_images",
    "service_tier",
    "user",
    "safety_identifier",
)
FIELDS = Fields(
    served=frozenset((*SAME, *OWN)),
    neutral={"quality": "auto", "moderation": "auto", "response_format": "b64_json"},
    refused=frozenset({"style", "complexity", "frame_count", "frame_duration_ms", "svg"}),
)
BACKGROUNDS = ("auto", "opaque")  # pictures have no other
NOT_DRAWN = ("gif", "svg")  # OpenAI's formats, not ours


class _Asked(Part):
    """What only the gateway reads."""

    model: Annotated[str, Field(min_length=1)]
    size: str = "auto"
    output_format: str | None = None
    output_compression: Annotated[int, Field(ge=1, le=100)] | None = None
    background: str = "auto"
    stream: bool = False
    partial_images: Annotated[int, Field(ge=0, le=MAX_PARTIAL_IMAGES)] = 0
    service_tier: Literal["auto", "default", "flex"] = "auto"
    user: Annotated[str, Field(max_length=MAX_USER_CHARS)] | None = None
    safety_identifier: Annotated[str, Field(max_length=MAX_USER_CHARS)] | None = None


class ImagesRequest:
    """A document whose fields are known; the limits of a model are looked at by `drawing`."""

    def __init__(self, asked: _Asked, words: Mapping[str, Any]) -> None:
        self._asked, self._words = asked, words
        self.model, self.stream, self.partial_images = asked.model, asked.stream, asked.partial_images
        self.user = asked.safety_identifier or asked.user  # whom the client asks for, in its own words

    @classmethod
    def parse(cls, given: object) -> Self:
        """Raises InvalidRequest or UnsupportedField."""
        if not isinstance(given, dict):
            raise InvalidRequest("the request is no JSON object", fix="send one JSON object")
        fields = FIELDS.read(given)
        asked = check(_Asked, {name: fields[name] for name in OWN if name in fields})
        if asked.background not in BACKGROUNDS:
            raise _unsupported("background", asked.background, limit=" or ".join(BACKGROUNDS))
        if asked.output_format in NOT_DRAWN:
            raise _unsupported("output_format", asked.output_format, limit="png, jpeg or webp")
        if asked.partial_images and not asked.stream:
            raise wrong(
                f"partial_images = {asked.partial_images} without a stream",
                "partial_images",
                fix="set stream, or leave partial_images out",
            )
        return cls(asked, {name: fields[name] for name in SAME if name in fields})

    def drawing(self, artist: Artist) -> DrawRequest:
        """What that model is asked for. Raises InvalidRequest."""
        asked, words, limits = self._asked, dict(self._words), artist.limits
        if asked.size != "auto":
            words["size"] = asked.size
        if asked.output_format is not None:
            words["format"] = _format(asked.output_format, limits)
        if asked.output_compression is not None:
            words["quality"] = _quality(asked.output_compression, words.get("format", limits.formats[0]))
        if asked.service_tier == "flex":
            words["latency_class"] = "batch"
        if asked.partial_images:
            steps = check(DrawRequest, words).steps
            words["preview_every"] = preview_every(asked.partial_images, steps or limits.default_steps)
        return check(DrawRequest, words)


def preview_every(partial_images: int, steps: int) -> int:
    """Steps between previews, of which at most `partial_images` come before the last step, evenly spread."""
    return max(1, -(-steps // (partial_images + 1)))


def _format(name: str, limits: DrawLimits) -> str:
    if name not in limits.formats:
        raise wrong(
            f"output_format = {written(name)}",
            "output_format",
            limit=f"[draw] formats = {shown(limits.formats)}",
            fix="ask for one of these",
        )
    return name


def _quality(compression: int, format: str) -> int:
    if format == "png" and compression != LOSSLESS_QUALITY:
        raise wrong(
            f"output_compression = {compression} of a PNG",
            "output_compression",
            limit=f"{LOSSLESS_QUALITY}: a PNG loses nothing",
            fix="leave it out, or ask for jpeg or webp",
        )
    return compression


def _unsupported(name: str, value: str, *, limit: str) -> UnsupportedField:
    return UnsupportedField(
        f"{name} = {written(value)} is not supported", param=name, limit=limit, fix="leave the field out"
    )
