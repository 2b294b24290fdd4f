"""The request document of `draw`: JSON bytes to typed fields, then to a Wish, in which every field has a value.

Every mistake is named with its field, value, limit and fix. What the checkpoint's tokenizer says is not known here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, NoReturn, Self

from pydantic import Field

from proteus.door.document import MAX_WHOLE, Asked, DocumentLimit, parse, shorten
from proteus.errors import InvalidRequest, PromptTooLong
from proteus.limits import DrawLimits, DrawnFormat, PreviewBy, SamplerName, shown

SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")
MAX_FIRST_INDEX = 2**31 - 1  # with n, an image index stays within 32 bits
Whole = Annotated[int, Field(gt=-MAX_WHOLE, lt=MAX_WHOLE)]  # the limits of the deployment are looked at afterwards


class DrawRequest(Asked):
    prompt: str
    negative_prompt: str = ""
    size: str | None = None  # "WIDTHxHEIGHT" in px
    steps: Whole | None = None
    guidance: float | None = None  # 1: none
    sampler: SamplerName | None = None
    seed: Annotated[int, Field(ge=0, lt=MAX_WHOLE)] | None = None  # drawn at random where left out
    first_index: Annotated[int, Field(ge=0, le=MAX_FIRST_INDEX)] = 0  # of the first picture among those of the seed
    n: Whole = 1  # pictures
    format: DrawnFormat | None = None
    quality: Annotated[int, Field(ge=1, le=100)] | None = None  # of JPEG and WebP
    preview_every: Annotated[int, Field(ge=0, lt=MAX_WHOLE)] = 0  # steps; 0: no previews
    preview_by: PreviewBy = "linear"

    @classmethod
    def parse(cls, document: bytes, limits: DrawLimits) -> Self:
        """Raises InvalidRequest naming the field, its value, the limit and the fix."""
        return parse(cls, document, document_limit(limits))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is asked for, within the contract; nothing is left out."""

    width_px: int
    height_px: int
    steps: int
    guidance: float
    sampler: SamplerName
    n: int
    format: DrawnFormat
    quality: int

    @classmethod
    def of(cls, request: DrawRequest, limits: DrawLimits) -> Self:
        """Raises InvalidRequest or PromptTooLong."""
        _check_texts(request, limits)
        width_px, height_px = _size_px(request, limits)
        return cls(
            width_px=width_px,
            height_px=height_px,
            steps=_steps(request, limits),
            guidance=_guidance(request, limits),
            sampler=request.sampler or limits.default_sampler,
            n=_number(request, limits),
            format=_format(request, limits),
            quality=request.quality or limits.default_quality,
        )

    @property
    def size(self) -> str:
        return f"{self.width_px}x{self.height_px}"


def document_limit(limits: DrawLimits) -> DocumentLimit:
    return DocumentLimit(
        key="[draw] max_request_bytes", max_bytes=limits.max_request_bytes, fix="send a shorter prompt"
    )


def _check_texts(request: DrawRequest, limits: DrawLimits) -> None:
    if not request.prompt.strip():
        raise InvalidRequest("prompt is empty", fix="say what to draw")
    for field, text in (("prompt", request.prompt), ("negative_prompt", request.negative_prompt)):
        num_bytes = len(text.encode())
        if num_bytes > limits.max_prompt_bytes:
            raise PromptTooLong(
                f"{field} has {num_bytes:,} bytes",
                limit=f"[draw] max_prompt_bytes = {limits.max_prompt_bytes:,}",
                fix="say it in fewer words",
            )


def _size_px(request: DrawRequest, limits: DrawLimits) -> tuple[int, int]:
    size = limits.default_size if request.size is None else request.size
    match = SIZE.fullmatch(size)
    if match is None:
        raise InvalidRequest(
            f'size = "{shorten(size)}"', limit="WIDTHxHEIGHT in px", fix=f'give a size like "{limits.default_size}"'
        )
    width_px, height_px = int(match[1]), int(match[2])
    multiple_px = limits.side_multiple_px
    if width_px % multiple_px or height_px % multiple_px:
        _refuse_size(size, f"sides are multiples of [draw] side_multiple_px = {multiple_px}", limits)
    if min(width_px, height_px) < limits.min_side_px:
        _refuse_size(size, f"[draw] min_side_px = {shown(limits.min_side_px)}", limits)
    if max(width_px, height_px) > limits.max_side_px:
        _refuse_size(size, f"[draw] max_side_px = {shown(limits.max_side_px)}", limits)
    if width_px * height_px > limits.max_pixels:
        _refuse_size(size, f"width x height at most [draw] max_pixels = {shown(limits.max_pixels)}", limits)
    return width_px, height_px


def _refuse_size(size: str, limit: str, limits: DrawLimits) -> NoReturn:
    raise InvalidRequest(f'size = "{size}"', limit=limit, fix=f'ask for another size, like "{limits.default_size}"')


def _steps(request: DrawRequest, limits: DrawLimits) -> int:
    steps = limits.default_steps if request.steps is None else request.steps
    if not 1 <= steps <= limits.max_steps:
        raise InvalidRequest(
            f"steps = {steps:,}", limit=f"1 to [draw] max_steps = {limits.max_steps:,}", fix="correct the number"
        )
    return steps


def _guidance(request: DrawRequest, limits: DrawLimits) -> float:
    guidance = limits.default_guidance if request.guidance is None else request.guidance
    if not 1 <= guidance <= limits.max_guidance:  # not a number is neither
        raise InvalidRequest(
            f"guidance = {guidance}",
            limit=f"1 (none) to [draw] max_guidance = {shown(limits.max_guidance)}",
            fix="correct the number",
        )
    return guidance


def _number(request: DrawRequest, limits: DrawLimits) -> int:
    if not 1 <= request.n <= limits.max_images:
        raise InvalidRequest(
            f"n = {request.n:,}",
            limit=f"1 to [draw] max_images = {limits.max_images}",
            fix="correct the number, or ask again for others",
        )
    return request.n


def _format(request: DrawRequest, limits: DrawLimits) -> DrawnFormat:
    wanted = request.format or limits.formats[0]
    if wanted not in limits.formats:
        raise InvalidRequest(
            f'format = "{wanted}"', limit=f"[draw] formats = {shown(limits.formats)}", fix="ask for one of these"
        )
    return wanted
