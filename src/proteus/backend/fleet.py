"""What the doors need of the other models, in plain arrays: nouns and protocols, no Triton."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from proteus.backend.spans import Trace
from proteus.generation.task import Condition, DrawEvent, DrawTask
from proteus.language.generation import TokenLogprobs
from proteus.stages import EncodeMarks

ParameterValue = str | int | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a call hands on, since Triton gives nothing of it to a model's children by itself."""

    request_id: str = ""
    parameters: Mapping[str, ParameterValue]
    timeout_us: int = 0  # 0: none
    trace: Trace | None = None  # takes its spans; none where it is not traced


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPicture:
    visual_tokens: npt.NDArray[np.float32]  # (N, D)
    marks: EncodeMarks
    preprocess_saved_us: int = 0  # 0: its pixels were computed; else what that had taken once
    encoder: str = ""  # what made it, as Fleet.encoder names it


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmCall:
    request_key: bytes
    input_ids: npt.NDArray[np.int32]  # (T,)
    visual_tokens: npt.NDArray[np.float32] | None  # (sum of span lengths, D)
    visual_spans: tuple[tuple[int, int], ...]
    media_keys: tuple[bytes, ...]  # one for each span
    sampling: bytes  # JSON
    scheduling: bytes  # JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmEnd:
    finish_reason: str  # `stop`, `length` or `cancelled`
    cached_tokens: int  # of the prompt
    queue_us: int
    prefill_us: int
    decode_us: int
    saved_us: int = 0  # of prefill, by the prefix cache, as estimated


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmEvent:
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each id, where they were asked for
    end: LlmEnd | None  # of the last event


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedText:
    condition: Condition
    key_echo: bytes


class Fleet(Protocol):
    """The models behind `chat`; every method raises ProteusError."""

    async def encoder(self) -> str:
        """Names what encodes pictures now, by all that this server's own files do not tell; "": its own CPU."""
        ...

    async def image_tokens(
        self, picture: bytes, scope_key: bytes, context: Context, target_px: tuple[int, int] | None = None
    ) -> EncodedPicture:
        """`target_px` is the upright (width, height) to make the picture smaller to first."""
        ...

    def generate(self, call: LlmCall, context: Context) -> AsyncGenerator[LlmEvent, None]: ...

    async def stop(self, request_key: bytes) -> None: ...


class DrawFleet(Protocol):
    """The models behind `draw`; every method raises ProteusError."""

    async def condition(self, ids: Mapping[str, npt.NDArray[np.int64]], key: bytes, context: Context) -> EncodedText:
        """`ids` by the tensor of the text encoder that takes them, each as long as the checkpoint says."""
        ...

    def denoise(self, task: DrawTask, context: Context) -> AsyncGenerator[DrawEvent, None]:
        """Previews as they come, each the latest there is, and the event with the end; `stop` ends it early."""
        ...

    async def stop(self, request_key: bytes) -> None: ...

    async def decode(self, latents: npt.NDArray[np.float32], context: Context) -> npt.NDArray[np.uint8]:
        """(Z, h, w), as the denoiser gives them, to (rows, columns, 3)."""
        ...
