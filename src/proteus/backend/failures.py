"""Text of a child's error -> our tree: Triton carries only text between models."""

from __future__ import annotations

import re

from proteus import errors
from proteus.errors import DeadlineExceeded, InternalError, ProteusError, QueueFull, Unavailable

# Every kind of the tree but InternalError, whose text is always the same.
BY_CODE: dict[str, type[ProteusError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ProteusError) and kind not in (ProteusError, InternalError)
}
OURS = re.compile(
    rf"\b(?P<code>{'|'.join(BY_CODE)}): (?P<what>.*?)(?:; limit: (?P<limit>.*?))?(?:; fix: (?P<fix>.*))?$", re.DOTALL
)
# Words of Triton 2.51's own errors.
QUEUE = ("exceeds maximum queue size", "max queue size")
GONE = (
    "is not healthy",
    "not ready",
    "no available versions",
    "stub process",
    "unloaded",
    "shutting",
)
LATE = "timeout expired"  # a stage's queue has no time of its own, only that of the request
TRY_AGAIN = "try again in some seconds"


def revive(text: str, model: str) -> ProteusError:
    """The error that `model` answered with; InternalError when the text is none that a client may see."""
    if (ours := OURS.search(text)) is not None:
        return BY_CODE[ours["code"]](ours["what"], limit=ours["limit"], fix=ours["fix"])
    lowered = text.lower()
    if any(words in lowered for words in QUEUE):
        return QueueFull(f"too many requests wait for {model}", limit=f"max_queue of {model}")
    if LATE in lowered:
        return DeadlineExceeded(
            f"not started by {model} in time",
            limit="Triton's timeout of the request",
            fix="allow more time",
        )
    if any(words in lowered for words in GONE):
        return Unavailable(f"{model} does not answer", fix=TRY_AGAIN)
    return InternalError()
