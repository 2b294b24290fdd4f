"""What can go wrong in a way a client can act on.

ProteusError
├── InvalidRequest        400  a field, a part or a byte that cannot be used
│   ├── InvalidPicture    400  bytes that are no usable picture
│   └── PromptTooLong     400  the prompt does not fit the context
├── MediaTooLarge         413  over a limit of the deployment file
├── QueueFull             429  try again later
├── Unavailable           503  a stage died or is restarting
└── InternalError         500  ours; the text is fixed, the cause is in the server's log
"""

from __future__ import annotations


class ProteusError(Exception):
    """An error whose text says what is wrong, the limit it broke and what to do.

    The text starts with `code`, because Triton's own protocols carry only the text: a gateway turns the code back into
    an HTTP status.
    """

    code = "internal"
    http_status = 500

    def __init__(self, what: str, *, limit: str | None = None, fix: str | None = None) -> None:
        parts = [f"{self.code}: {what}"]
        if limit is not None:
            parts.append(f"limit: {limit}")
        if fix is not None:
            parts.append(f"fix: {fix}")
        super().__init__("; ".join(parts))
        self.what, self.limit, self.fix = what, limit, fix


class InvalidRequest(ProteusError):
    code = "invalid_request"
    http_status = 400


class InvalidPicture(InvalidRequest):
    code = "invalid_picture"


class PromptTooLong(InvalidRequest):
    code = "prompt_too_long"


class MediaTooLarge(ProteusError):
    code = "media_too_large"
    http_status = 413


class QueueFull(ProteusError):
    code = "queue_full"
    http_status = 429


class Unavailable(ProteusError):
    code = "unavailable"
    http_status = 503


class InternalError(ProteusError):
    """Something of ours failed; the text never carries the cause."""

    def __init__(self) -> None:
        super().__init__("the server could not finish this request", fix="try again; the cause is in the server's log")
