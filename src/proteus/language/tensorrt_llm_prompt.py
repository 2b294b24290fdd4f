"""A request's prompt in the words of TensorRT-LLM, and the salt that keeps its keys and values apart from all others'.

T prompt tokens, R visual tokens of all pictures, D width.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

from proteus.cache.key import scope_key
from proteus.language.generation import GenerationRequest
from proteus.language.prefix import keys_of_spans

DOMAIN = b"proteus.salt.1"
LENGTH = struct.Struct("<Q")
UNUSED = " "  # a prompt of text must be there; ours are ids, which no text gives back reliably


def cache_salt(request: GenerationRequest, media_keys: tuple[bytes, ...], *, revision: str) -> str:
    """Of the blocks that this request reads and leaves: equal only where scope, weights and all pictures are.

    Pictures have equal placeholders, and that TensorRT-LLM tells blocks apart by what stands in their place cannot be
    relied on in every version (decisions/0024): so requests with other pictures share nothing, their text neither.
    """
    fields = (DOMAIN, scope_key(request.scheduling.cache_scope), revision.encode(), *media_keys)
    return hashlib.sha256(b"".join(LENGTH.pack(len(field)) + field for field in fields)).hexdigest()


def media_keys(request: GenerationRequest) -> tuple[bytes, ...]:
    """What each span shows; of a picture without a name, the digest of its rows."""
    return request.media_keys or keys_of_spans(request.visual_tokens, request.visual_spans)


def llm_inputs(request: GenerationRequest, keys: tuple[bytes, ...]) -> dict[str, Any]:
    """What `LLM.generate_async` takes. Rows go to `RowsProcessor` of tensorrt_llm_model.py with the ids as they are:
    made into text and back, typed text could become a control token.
    """
    token_ids = request.input_ids.tolist()  # (T,)
    if request.visual_tokens is None:
        return {"prompt_token_ids": token_ids}
    given = {
        "token_ids": token_ids,
        "rows": request.visual_tokens,  # (R, D)
        "spans": request.visual_spans,
        "digests": tuple(hashlib.sha256(key).digest() for key in keys),
    }
    return {"prompt": UNUSED, "multi_modal_embeddings": given}
