"""What can go wrong at the client's side of the wire.

ClientError
├── InvalidInput      found before anything was sent: an unreadable picture, text that is no Unicode
├── ConnectionFailed  no server, or it went away before the answer was complete
├── TimedOut          `timeout_s` is over; the server has been told to stop
└── ServerError       the server refused or failed; `code` is the stable word of `proteus.errors`
"""

from __future__ import annotations

import re

_REQUEST_ID = re.compile(r"^\[request id: [^\]]*\] ")  # Triton puts it before texts of its own
_CODED = re.compile(
    r"(?P<code>[a-z]+(?:_[a-z]+)*): (?P<what>.*?)(?:; limit: (?P<limit>.*?))?(?:; fix: (?P<fix>.*))?", re.DOTALL
)

_RETRY = re.compile(r"try again in (?P<s>[0-9]+\.[0-9]) s")


class ClientError(Exception):
    """Anything this library raises on purpose."""


class InvalidInput(ClientError):
    """The request could not be put together; nothing was sent."""


class ConnectionFailed(ClientError):
    """There is no server at the address, or the connection broke."""


class TimedOut(ClientError):
    """The answer was not complete within `timeout_s`."""


class ServerError(ClientError):
    """The server's own words: `code`, then `message` = what is wrong; `limit` and `fix` where it names them.

    A text of Triton's own, that carries none of our codes, has the code `triton`.
    """

    def __init__(self, code: str, message: str, *, limit: str | None = None, fix: str | None = None) -> None:
        parts = [f"{code}: {message}"]
        if limit is not None:
            parts.append(f"limit: {limit}")
        if fix is not None:
            parts.append(f"fix: {fix}")
        super().__init__("; ".join(parts))
        self.code, self.message, self.limit, self.fix = code, message, limit, fix

    @property
    def retry_after_s(self) -> float | None:
        """When to come back, where the server said so (`queue_full`)."""
        found = _RETRY.fullmatch(self.fix or "")
        return float(found["s"]) if found is not None else None

    @property
    def is_unknown_model(self) -> bool:
        """Whether the server has no such model, or could not load it."""
        return self.code == "triton" and self.message.startswith("Request for unknown model")

    @classmethod
    def parse(cls, text: str) -> ServerError:
        """From `code: what; limit: ...; fix: ...`, limit and fix optional; never raises."""
        text = _REQUEST_ID.sub("", text)
        found = _CODED.fullmatch(text)
        if found is None:
            return cls("triton", text)
        return cls(found["code"], found["what"], limit=found["limit"], fix=found["fix"])
