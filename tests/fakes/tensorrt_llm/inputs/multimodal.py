"""Which item of media is where in a prompt, and what stands in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class MultimodalInput:
    """As since 1.3."""

    multimodal_hashes: list[list[int]]
    multimodal_item_runs: list[list[tuple[int, int, tuple[int, ...]]]]
    multimodal_uuids: list[str | None] | None = None

    def __post_init__(self) -> None:
        if len(self.multimodal_hashes) != len(self.multimodal_item_runs):
            raise ValueError("multimodal_item_runs length must match multimodal_hashes length")
        for digest in self.multimodal_hashes:
            if len(digest) != 8 or not all(isinstance(part, int) and -(2**31) <= part < 2**31 for part in digest):
                raise ValueError("multimodal_hashes must be lists of 8 integers")

    @property
    def spans(self) -> list[tuple[list[int], int, int]]:
        """(hash, start, length) of each run."""
        items = zip(self.multimodal_hashes, self.multimodal_item_runs, strict=True)
        return [(digest, start, length) for digest, runs in items for start, length, _ in runs]


@dataclass
class PositionsInput:
    """As before 1.3."""

    multimodal_hashes: list[list[int]]
    multimodal_positions: list[int]
    multimodal_lengths: list[int]

    @property
    def spans(self) -> list[tuple[list[int], int, int]]:
        return list(zip(self.multimodal_hashes, self.multimodal_positions, self.multimodal_lengths, strict=True))


@dataclass
class MultimodalRuntimeData:
    past_seen_token_num: int
    chunk_end_pos: int
    embed_mask_cumsum: torch.Tensor

    def rows_before(self, place: int) -> int:
        return int(self.embed_mask_cumsum[place - 1]) if place else 0


@dataclass
class MultimodalParams:
    multimodal_input: Any = None
    multimodal_data: dict[str, Any] | None = None
    multimodal_runtime: MultimodalRuntimeData | None = None
