"""A question with a picture to an OpenAI server over HTTP, streamed; as little work for the client as can be."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from perf.side.asks import TOKENS, Ask
from perf.side.turns import Answered

PATH = "/v1/chat/completions"
LONGEST_LINE_BYTES = 1 << 20


class ServerRefused(Exception):
    """Another status than 200; the text begins as the answer did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where to ask, and the fields of the document that this server alone takes."""

    host: str
    port: int
    model: str
    options: Mapping[str, Any]

    async def answer(self, ask: Ask) -> Answered:
        body = json.dumps(self.document(ask)).encode()
        sent_s = time.perf_counter()
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=LONGEST_LINE_BYTES)
        try:
            writer.write(_head(self.host, len(body)) + body)
            return await _read(_chunks(reader), sent_s)
        finally:
            writer.close()

    def document(self, ask: Ask) -> dict[str, Any]:
        url = f"data:image/jpeg;base64,{base64.b64encode(ask.picture).decode()}"
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": ask.question}]
        plain = {"model": self.model, "max_tokens": TOKENS, "temperature": 0, "stream": True}
        return {**plain, "messages": [{"role": "user", "content": content}], **self.options}


def _head(host: str, length: int) -> bytes:
    fields = (f"POST {PATH} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", f"Content-Length: {length}")
    return ("\r\n".join((*fields, "Connection: close")) + "\r\n\r\n").encode()


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The documents of the stream of events; the marks of HTTP's own chunks are not events and are passed over."""
    status = await reader.readline()
    if b" 200 " not in status:
        raise ServerRefused(f"{status.decode().strip()}: {(await reader.read())[-300:].decode(errors='replace')}")
    async for line in reader:
        if line.startswith(b"data: {"):
            yield json.loads(line.removeprefix(b"data: "))


async def _read(chunks: AsyncIterator[dict[str, Any]], sent_s: float) -> Answered:
    text, ids, counted, ttft_s = "", [], 0, 0.0
    async for chunk in chunks:
        if chunk.get("usage"):
            counted = chunk["usage"]["completion_tokens"]
        for choice in chunk["choices"]:
            new, new_ids = choice["delta"].get("content") or "", choice.get("token_ids") or []
            if (new or new_ids) and not ttft_s:
                ttft_s = time.perf_counter() - sent_s
            text += new
            ids += new_ids
    return Answered(num_tokens=counted, ttft_s=ttft_s, text=text, ids=tuple(ids) or None)
