"""The name of what stands before a place in a prompt: a chain of SHA-256, one link for each full block of tokens.

Keys and values of a block depend on everything before them, so a link covers the link before it, the block's ids, and
which part of which picture stands in place of its placeholders. T prompt tokens, R visual tokens, D width.
"""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt

from proteus.language.generation import Spans
from proteus.language.kv_slots import KV_DTYPE

DOMAIN = b"proteus.prefix.1"
DIGEST_BYTES = 32
ID_BYTES = 8
LENGTH = struct.Struct("<Q")
# Place in the block, offset in the medium, positions, positions of the whole medium, bytes of its key.
SHOWN = struct.Struct("<5Q")


def root(*, cache_scope: str, revision: str, adapter: str, kv_dtype: str = np.dtype(KV_DTYPE).name) -> bytes:
    """Where the chains of one scope and one model begin; no two lists of fields run together."""
    fields = (DOMAIN, cache_scope.encode(), revision.encode(), adapter.encode(), kv_dtype.encode())
    return hashlib.sha256(b"".join(LENGTH.pack(len(field)) + field for field in fields)).digest()


def chain(
    *,
    root: bytes,
    input_ids: npt.NDArray[np.integer[Any]],
    visual_spans: Spans,
    media_keys: tuple[bytes, ...],
    block_tokens: int,
) -> tuple[bytes, ...]:
    """The digest of each full block of (T,) ids. Raises ValueError where a span has no key of its own."""
    if len(root) != DIGEST_BYTES:
        raise ValueError(f"a root has {DIGEST_BYTES} bytes, not {len(root)}")
    num_blocks = len(input_ids) // block_tokens
    shown = _shown(visual_spans, media_keys, block_tokens, num_blocks)
    ids = np.ascontiguousarray(input_ids, dtype="<i8").tobytes()
    size = block_tokens * ID_BYTES
    length = LENGTH.pack(size)
    digests, digest = [], root
    for block in range(num_blocks):
        parts = (digest, length, ids[block * size : (block + 1) * size], *shown.get(block, ()))
        digest = hashlib.sha256(b"".join(parts)).digest()
        digests.append(digest)
    return tuple(digests)


def media_key_of_rows(rows: npt.NDArray[np.float32]) -> bytes:
    """The key of a picture that has no name, from its visual tokens (R, D)."""
    shape = struct.pack("<2Q", *rows.shape)
    return hashlib.sha256(shape + np.ascontiguousarray(rows, dtype="<f4").tobytes()).digest()


def _shown(spans: Spans, keys: tuple[bytes, ...], block_tokens: int, num_blocks: int) -> defaultdict[int, list[bytes]]:
    """By block: what its placeholders stand for. Ids say nothing of it, they are the same for every picture."""
    shown: defaultdict[int, list[bytes]] = defaultdict(list)
    for (start, length), key in zip(spans, keys, strict=True):
        if not key:
            raise ValueError("a media key is empty: pictures without a name would be taken for one another")
        end = start + length
        for block in range(start // block_tokens, min(num_blocks, -(-end // block_tokens))):
            begin = block * block_tokens
            first, last = max(start, begin), min(end, begin + block_tokens)
            shown[block].append(SHOWN.pack(first - begin, first - start, last - first, length, len(key)) + key)
    return shown
