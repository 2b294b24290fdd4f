"""What can go wrong in a way a client can act on.

ProteusError
├── InvalidRequest        400  a field, a part or a byte that cannot be used
│   ├── InvalidMedia      400  bytes that are no usable picture, video or audio
│   │   └── InvalidPicture
│   ├── FetchFailed       400  a URL that is not allowed or did not give a picture
│   └── PromptTooLong     400  the prompt does not fit the context
├── MediaTooLarge         413  over a limit of the deployment file
├── QueueFull             429  try again later
├── Unavailable           503  a stage died or is restarting
├── DeadlineExceeded      504  not started in time
├── Stalled               500  ours; was given work again and again and got no further, or could never be started
├── BrokenModel           500  the model's output is no distribution; the text is fixed
└── InternalError         500  ours; the text is fixed, the cause is in the server's log
"""

from __future__ import annotations

from typing import Self


class ProteusError(Exception):
    """An error whose text says what is wrong, the limit it broke and what to do.

    The text starts with `code`, because Triton's own protocols carry only the text: a gateway turns the code back into
    an HTTP status.
    """

    code = "internal"
    http_status = 500
    param: str | None = None  # path of the field that is meant, where it is one field: `messages[0].content`

    def __init__(self, what: str, *, limit: str | None = None, fix: str | None = None) -> None:
        parts = [f"{self.code}: {what}"]
        if limit is not None:
            parts.append(f"limit: {limit}")
        if fix is not None:
            parts.append(f"fix: {fix}")
        super().__init__("; ".join(parts))
        self.what, self.limit, self.fix = what, limit, fix

    def about(self, name: str) -> Self:
        """The same error, said of one thing among others: "picture 2: …"."""
        return type(self)(f"{name}: {self.what}", limit=self.limit, fix=self.fix)


class InvalidRequest(ProteusError):
    code = "invalid_request"
    http_status = 400


class InvalidMedia(InvalidRequest):
    code = "invalid_media"


class InvalidPicture(InvalidMedia):
    code = "invalid_picture"


class FetchFailed(InvalidRequest):
    code = "fetch_failed"


class PromptTooLong(InvalidRequest):
    code = "prompt_too_long"


class MediaTooLarge(ProteusError):
    code = "media_too_large"
    http_status = 413


class QueueFull(ProteusError):
    """`retry_after_s` is when a place is likely to be free, where that is known; the text says it too."""

    code = "queue_full"
    http_status = 429

    def __init__(
        self, what: str, *, limit: str | None = None, fix: str | None = None, retry_after_s: float | None = None
    ) -> None:
        when = "later" if retry_after_s is None else f"in {retry_after_s:.1f} s"
        super().__init__(what, limit=limit, fix=fix or f"try again {when}")
        self.retry_after_s = retry_after_s


class Unavailable(ProteusError):
    code = "unavailable"
    http_status = 503


class DeadlineExceeded(ProteusError):
    code = "deadline_exceeded"
    http_status = 504


class Stalled(ProteusError):
    code = "stalled"


class BrokenModel(ProteusError):
    """Logits that are not finite, all equal or stuck; what was seen is in the server's log."""

    code = "model_output_invalid"

    def __init__(
        self,
        what: str = "the model's output cannot be used, the answer ends here",
        *,
        limit: str | None = None,
        fix: str | None = "change the prompt or the pictures; what was seen is in the server's log",
    ) -> None:
        super().__init__(what, limit=limit, fix=fix)


class InternalError(ProteusError):
    """Something of ours failed; the text never carries the cause."""

    def __init__(self) -> None:
        super().__init__("the server could not finish this request", fix="try again; the cause is in the server's log")
