"""What only the gateway refuses, and every refusal in OpenAI's form.

ProteusError
├── InvalidKey            401  no API key, or none that is known
│   └── ExpiredKey        401  known once: nobody guessed it
├── NotAllowed            403  the tenant may not have this model, or the browser's origin or host is not ours
├── NotFound              404  no such path or model
├── MethodNotAllowed      405  of a path that has others
├── UploadTooSlow         408  the body did not come in time
├── BodyTooLarge          413  over [gateway.http] max_body_bytes
├── UnsupportedMediaType  415  the body is not JSON
├── UnsupportedField      422  a field of OpenAI's that is not served here
├── ContentRefused        422  the moderation check said no
├── TooManyBadKeys        429  of one network address within a minute; none of its keys is looked at
├── OverBudget            429  the tenant's budget is used up for now; `retry_after_s` says until when
├── Draining              503  the gateway is stopping
├── CannotListen          –    told to whoever starts the gateway: it has no port
└── AnswerTimeout         504  no whole answer within [gateway.routing] answer_timeout_ms
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from proteus.client.errors import ConnectionFailed, InvalidInput, ServerError, TimedOut
from proteus.errors import InternalError, ProteusError, QueueFull, Unavailable
from proteus.families.family import PlanRefused


class InvalidKey(ProteusError):
    code = "invalid_api_key"
    http_status = 401


class ExpiredKey(InvalidKey):
    pass


class NotAllowed(ProteusError):
    code = "not_allowed"
    http_status = 403


class NotFound(ProteusError):
    code = "not_found"
    http_status = 404


class MethodNotAllowed(ProteusError):
    code = "method_not_allowed"
    http_status = 405


class UploadTooSlow(ProteusError):
    code = "upload_too_slow"
    http_status = 408


class BodyTooLarge(ProteusError):
    code = "body_too_large"
    http_status = 413


class UnsupportedMediaType(ProteusError):
    code = "unsupported_media_type"
    http_status = 415


class UnsupportedField(ProteusError):
    code = "unsupported_field"
    http_status = 422

    def __init__(
        self, what: str, *, param: str | None = None, limit: str | None = None, fix: str | None = None
    ) -> None:
        super().__init__(what, limit=limit, fix=fix)
        self.param = param


class ContentRefused(ProteusError):
    code = "content_refused"
    http_status = 422


class TooManyBadKeys(QueueFull):
    code = "too_many_bad_keys"


class OverBudget(QueueFull):
    code = "over_budget"


class Draining(Unavailable):
    code = "draining"


class CannotListen(ProteusError):
    code = "cannot_listen"


class AnswerTimeout(ProteusError):
    code = "answer_timeout"
    http_status = 504


TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def _kinds(kind: type[ProteusError]) -> Iterator[type[ProteusError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)


# Not those that stop a start: what else is imported must not change what clients are told.
TOLD = (ProteusError.__module__, PlanRefused.__module__, __name__)
STATUS_OF: Mapping[str, int] = {kind.code: kind.http_status for kind in _kinds(ProteusError) if kind.__module__ in TOLD}


def http_error(error: Exception) -> tuple[int, dict[str, Any], float | None]:
    """Status, document in OpenAI's form, and when to come back in seconds, where that is known."""
    told = _told(error)
    status = STATUS_OF.get(told.code, 500)
    document = {
        "message": str(told).removeprefix(f"{told.code}: "),
        "type": TYPES.get(status, "invalid_request_error" if status < 500 else "server_error"),
        "param": getattr(error, "param", None),
        "code": told.code,
        "limit": told.limit,
        "fix": told.fix,
    }
    retry_after_s = getattr(error, "retry_after_s", None)
    return status, {"error": document}, told.retry_after_s if retry_after_s is None else retry_after_s


def _told(error: Exception) -> ServerError:
    """Every failure as the wire tells one; what is not meant for a client is `internal`."""
    match error:
        case ServerError() if error.code in STATUS_OF:
            return error
        case ServerError() if error.code == "incomplete":
            return ServerError.parse(str(Unavailable("the server broke the answer off", fix="ask again")))
        case ServerError() if error.is_unknown_model:
            return ServerError.parse(str(Unavailable("no server has the model now", fix="try again in some seconds")))
        case ConnectionFailed():
            return ServerError.parse(str(Unavailable("no server answers", fix="try again in some seconds")))
        case TimedOut():
            return ServerError.parse(str(AnswerTimeout("there was no whole answer in time", fix="ask for less")))
        case InvalidInput():
            return ServerError("invalid_request", str(error))
        case ProteusError() if error.code in STATUS_OF:
            return ServerError(error.code, error.what, limit=error.limit, fix=error.fix)
        case _:
            return ServerError.parse(str(InternalError()))


def error_body(error: Exception) -> bytes:
    """The document as it is sent."""
    return json.dumps(http_error(error)[1]).encode()
