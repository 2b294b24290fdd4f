"""The name of what stands before a place in a prompt: a chain, one link for each full block of tokens.

Keys and values of a block depend on everything before them, positions too: so a link's digest covers the link before
it, the block's ids, and which part of which picture stands in place of its placeholders; its number in the chain is its
position. Chains are equal when all that was hashed is. T prompt tokens, R visual tokens, D width.
"""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from proteus.cache.key import scope_key
from proteus.language.generation import Spans
from proteus.language.kv_slots import KV_DTYPE

DOMAIN = b"proteus.prefix.2"
ID_BYTES = 8
LENGTH = struct.Struct("<Q")
# Place in the block, offset in the medium, positions, positions of the whole medium, bytes of its key.
SHOWN = struct.Struct("<5Q")


class Link(NamedTuple):
    """Equal to another only as a whole: who walks two chains from their beginning compares all that they stand for."""

    digest: bytes  # over the link before it and `content`
    content: bytes  # ids and pictures of its block; of the first, scope key, model and adapter before


Chain = tuple[Link, ...]


def root(*, cache_scope: str, revision: str, adapter: str, kv_dtype: str = np.dtype(KV_DTYPE).name) -> Link:
    """Where the chains of one scope and one model begin; no two lists of fields run together."""
    fields = (DOMAIN, scope_key(cache_scope), revision.encode(), adapter.encode(), kv_dtype.encode())
    content = b"".join(LENGTH.pack(len(field)) + field for field in fields)
    return Link(hashlib.sha256(content).digest(), content)


def chain(
    *,
    root: Link,
    input_ids: npt.NDArray[np.integer[Any]],
    visual_spans: Spans,
    media_keys: tuple[bytes, ...],
    block_tokens: int,
) -> Chain:
    """A link for each full block of (T,) ids. Raises ValueError where a span has no key of its own."""
    num_blocks = len(input_ids) // block_tokens
    shown = _shown(visual_spans, media_keys, block_tokens, num_blocks)
    ids = np.ascontiguousarray(input_ids, dtype="<i8").tobytes()
    size = block_tokens * ID_BYTES
    length = LENGTH.pack(size)
    links, digest, before = [], root.digest, root.content
    for block in range(num_blocks):
        content = b"".join((length, ids[block * size : (block + 1) * size], *shown.get(block, ())))
        digest = hashlib.sha256(digest + content).digest()
        links.append(Link(digest, before + content))
        before = b""
    return tuple(links)


def media_key_of_rows(rows: npt.NDArray[np.float32]) -> bytes:
    """The key of a picture that has no name, from its visual tokens (R, D)."""
    shape = struct.pack("<2Q", *rows.shape)
    return hashlib.sha256(shape + np.ascontiguousarray(rows, dtype="<f4").tobytes()).digest()


def keys_of_spans(rows: npt.NDArray[np.float32] | None, spans: Spans) -> tuple[bytes, ...]:
    """The key of each picture of a request that names none; rows (R, D) of all of them, in order."""
    if rows is None:
        return ()
    keys, row = [], 0
    for _, length in spans:
        keys.append(media_key_of_rows(rows[row : row + length]))
        row += length
    return tuple(keys)


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
