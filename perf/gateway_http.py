"""As little of an HTTP client as the load needs: connections that are kept, whole answers and server-sent events."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

CHAT = "/v1/chat/completions"
DONE = b"[DONE]"
LINE_BYTES = 1 << 20


class HttpFailed(Exception):
    """An answer that is none: a status, an event that tells an error, a connection that ended."""


def chat_body(question: str, picture: bytes | None, tokens: int, *, stream: bool, model: str = "demo") -> bytes:
    """Of an answer of exactly so many tokens."""
    content: str | list[dict[str, Any]] = question
    if picture is not None:
        url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    document: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": tokens,
        "min_tokens": tokens,
    }
    if stream:
        document |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(document, separators=(",", ":")).encode()


class Connections:
    """Each does one request at a time; one that is free is taken again, the last used first."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._host, self._port = place.hostname or "", place.port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, body: bytes, path: str = CHAT) -> AsyncGenerator[str | Mapping[str, float], None]:
        """Pieces of text, and the stages at the end. Raises HttpFailed."""
        reader, writer = await self._connection()
        whole = False
        try:
            writer.write(
                f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            status, headers = await _head(reader)
            if b"content-length" in headers:
                document = json.loads(await reader.readexactly(int(headers[b"content-length"])))
                whole = headers.get(b"connection") != b"close"
                if status != 200:
                    raise HttpFailed(document["error"]["code"])
                yield document["choices"][0]["message"]["content"]
                yield document["proteus"]["stages_ms"]
                return
            async for event in _events(reader):
                document = json.loads(event)
                if "error" in document:
                    raise HttpFailed(f"{document['error']['code']} in a stream")
                for choice in document["choices"]:
                    yield choice["delta"].get("content", "")
                if document.get("proteus"):
                    yield document["proteus"]["stages_ms"]
            whole = True
        except asyncio.IncompleteReadError as error:
            raise HttpFailed("the connection ended") from error
        finally:
            if whole:
                self._free.append((reader, writer))
            else:
                writer.close()

    async def close(self) -> None:
        for _, writer in self._free:
            writer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._free:
            reader, writer = self._free.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
        return await asyncio.open_connection(self._host, self._port, limit=LINE_BYTES)


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[bytes, bytes]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    pairs = (line.partition(b": ") for line in lines if line)
    return int(first.split(b" ")[1]), {name.lower(): value for name, _, value in pairs}


async def _events(reader: asyncio.StreamReader) -> AsyncGenerator[bytes, None]:
    """The data of each, up to DONE and the end of the body. Raises HttpFailed where it ends before."""
    held, done = b"", False
    while size := int(await reader.readuntil(b"\r\n"), 16):
        held += (await reader.readexactly(size + 2))[:-2]
        *events, held = held.split(b"\n\n")
        for event in events:
            data = event.partition(b"data: ")[2]
            done = done or data == DONE
            if data != DONE:
                yield data
    await reader.readexactly(2)
    if not done:
        raise HttpFailed("the stream ended without [DONE]")
