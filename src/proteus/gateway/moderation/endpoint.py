"""A check behind an HTTP endpoint: the subject as JSON, pictures in base64; the verdict as JSON, bounded and strict.

Nothing is followed, nothing is sent but the subject, and no proxy is used.
"""

from __future__ import annotations

import ssl
from typing import Annotated, Literal

import httpcore
from pydantic import Field, ValidationError

from proteus.door.document import Part
from proteus.gateway.http.presence import as_json
from proteus.gateway.moderation.subject import CheckFailed, Shown, Subject, Verdict
from proteus.gateway.openai.in_base64 import with_base64, written
from proteus.limits_gateway import Moderation as Settings

VERSION = 1  # of both documents
MAX_ANSWER_BYTES = 65_536
ATTEMPTS = 2  # a connection that was kept may have ended in the moment it is used again
HEADERS = [
    (b"Content-Type", b"application/json"),
    (b"Accept", b"application/json"),
    (b"Accept-Encoding", b"identity"),
    (b"User-Agent", b"proteus"),
]


class _Told(Part):
    verdict: Literal["allow", "refuse", "blur"]
    category: str = ""
    pictures: Annotated[list[int], Field(max_length=1024)] = []


class HttpCheck:
    """For one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._url = httpcore.URL(settings.url)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl.create_default_context() if settings.url.startswith("https:") else None,
            max_connections=settings.max_at_once,
            keepalive_expiry=5.0,
        )

    async def check(self, subject: Subject) -> Verdict:
        """Raises CheckFailed."""
        num_bytes = sum(len(picture.data) for picture in subject.pictures)
        body = await written(num_bytes, lambda: _document(subject))
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return _verdict(await self._post(body))
            except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
                if attempt == ATTEMPTS:
                    raise CheckFailed(f"the endpoint could not be talked to: {type(error).__name__}") from error
        raise CheckFailed("the endpoint was not asked")

    async def close(self) -> None:
        await self._pool.aclose()

    async def _post(self, body: bytes) -> bytes:
        headers = [*HEADERS, (b"Content-Length", b"%d" % len(body))]
        async with self._pool.stream("POST", self._url, headers=headers, content=body) as response:
            if response.status != 200:
                raise CheckFailed(f"the endpoint answered {response.status}")
            answer = bytearray()
            async for chunk in response.aiter_stream():
                answer += chunk
                if len(answer) > MAX_ANSWER_BYTES:
                    raise CheckFailed(f"the endpoint's answer is over {MAX_ANSWER_BYTES:,} bytes")
            return bytes(answer)


def _document(subject: Subject) -> bytes:
    head = as_json(
        {
            "version": VERSION,
            "when": subject.when,
            "tenant": subject.tenant,
            "request_id": subject.request_id,
            "texts": subject.texts,
        }
    )
    pictures = b",".join(_picture(picture) for picture in subject.pictures)
    return b"".join((head[:-1], b',"pictures":[', pictures, b"]}"))


def _picture(picture: Shown) -> bytes:
    facts = {
        "digest": picture.digest,
        "format": picture.format,
        "width_px": picture.width_px,
        "height_px": picture.height_px,
    }
    return with_base64(as_json(facts), "data", picture.data)


def _verdict(answer: bytes) -> Verdict:
    try:
        told = _Told.model_validate_json(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise CheckFailed(f"the endpoint's answer is no verdict: {first['type']} at {first['loc'][:1]!a}") from None
    if told.verdict != "allow" and not told.category:
        raise CheckFailed("the endpoint's answer names no category")
    if (told.verdict == "blur") != bool(told.pictures):
        raise CheckFailed("pictures are named with the verdict blur, and with no other")
    return Verdict(refused=told.verdict == "refuse", blurred=frozenset(told.pictures), category=told.category)
