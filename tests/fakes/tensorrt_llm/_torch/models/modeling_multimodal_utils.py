"""Rows of media among the embeddings of text."""

from __future__ import annotations

from typing import Any

import torch


def find_input_mm_embeds(mm_embeds: list[torch.Tensor], multimodal_params: list[Any]) -> list[torch.Tensor]:
    """Those rows of each request that are in this chunk of it, and not in the KV cache."""
    (whole,) = mm_embeds
    kept, first = [], 0
    for params in multimodal_params:
        runtime, size = params.multimodal_runtime, len(params.multimodal_data["multimodal_embedding"])
        begin, end = (runtime.rows_before(place) for place in (runtime.past_seen_token_num, runtime.chunk_end_pos))
        kept.append(whole[first + begin : first + end])
        first += size
    if first != len(whole):
        raise ValueError(f"{len(whole)} rows, {first} by request")
    rows = torch.cat(kept)
    return [rows] if len(rows) else []


def fuse_input_embeds(
    embedding_layer: torch.nn.Embedding,
    input_ids: torch.Tensor,
    mm_embeds: list[torch.Tensor],
    mm_token_ids: torch.Tensor | None = None,
    text_token_indices: torch.Tensor | None = None,
    mm_token_indices: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if not mm_embeds:
        return input_ids, None
    rows = torch.cat(mm_embeds)
    is_media = torch.isin(input_ids, mm_token_ids.to(input_ids.dtype))
    if int(is_media.sum()) != len(rows):
        raise ValueError(f"Multimodal token count mismatch: {int(is_media.sum())} places, {len(rows)} rows")
    fused = embedding_layer(torch.where(is_media, 0, input_ids))
    fused[is_media] = rows.to(fused.dtype)
    return None, fused
