"""A prompt to the ids that the text encoder takes: by every tokenizer of the checkpoint, padded, never cut short.

What a user typed never becomes a control token, whatever it says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from proteus.errors import PromptTooLong
from proteus.language.tokenizer import DisarmedTokenizer, load_tokenizer
from proteus.manifest import TextInput

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextIds:
    """One text as all tokenizers of the checkpoint have it."""

    arrays: Mapping[str, Ids]  # (tokens,) by the name of the text encoder's input
    num_tokens: int  # begin and end included, padding not; by the tokenizer that makes the most of them
    says_nothing: bool  # begin and end are all there is

    def as_bytes(self) -> tuple[tuple[str, bytes], ...]:
        """Name and ids of every input, little-endian."""
        return tuple((name, ids.astype("<i8").tobytes()) for name, ids in sorted(self.arrays.items()))


class PromptTokenizer:
    """Of one checkpoint; for any threads."""

    def __init__(self, text_inputs: Sequence[TextInput], tokenizers: Sequence[DisarmedTokenizer]) -> None:
        self._parts = tuple(zip(text_inputs, tokenizers, strict=True))
        self._nothing = {one.tensor: _ids(tokenizer, "") for one, tokenizer in self._parts}

    @classmethod
    def from_checkpoint(cls, folder: Path, text_inputs: Sequence[TextInput]) -> PromptTokenizer:
        """Raises UnsupportedCheckpoint."""
        return cls(text_inputs, [_tokenizer(folder / one.folder) for one in text_inputs])

    def encode(self, text: str, field: str) -> TextIds:
        """The ids of `text`, which came as `field`; raises PromptTooLong."""
        arrays: dict[str, Ids] = {}
        longest, says_nothing = 0, True
        for one, tokenizer in self._parts:
            ids, nothing = _ids(tokenizer, text), self._nothing[one.tensor]
            if len(ids) > one.tokens:
                raise PromptTooLong(
                    f"{field} has {len(ids):,} tokens, {len(nothing)} of them around it ({one.folder})",
                    limit=f"{one.tokens:,} tokens, of the checkpoint's text encoder",
                    fix="say it in fewer words",
                )
            arrays[one.tensor] = np.full(one.tokens, one.pad_id, dtype=np.int64)
            arrays[one.tensor][: len(ids)] = ids
            longest, says_nothing = max(longest, len(ids)), says_nothing and ids == nothing
        return TextIds(arrays=arrays, num_tokens=longest, says_nothing=says_nothing)


def _tokenizer(folder: Path) -> DisarmedTokenizer:
    """Every control token is known under a random name only, but for those of one character: those are punctuation."""
    tokenizer = load_tokenizer(folder)
    added = tokenizer.get_added_tokens_decoder().values()
    return DisarmedTokenizer(tokenizer, [token.content for token in added if token.special and len(token.content) > 1])


def _ids(tokenizer: DisarmedTokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=True)
