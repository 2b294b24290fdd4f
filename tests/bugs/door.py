"""The door with models that answer anything, as tests/door has it, for one request at a time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from proteus.backend.fleet import Context
from proteus.door.arrival import Call
from tests.door.test_chat import Client, Models, door


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


PICTURE: dict[str, Any] = {"type": "image"}


def asked(*pictures: bytes, content: object, models: Models | None = None, **fields: Any) -> tuple[Client, Models]:
    """What the client got and what the models were asked; raises what the client would be told."""
    document = {"messages": [{"role": "user", "content": content}], **fields}
    return asked_as_written(json.dumps(document).encode(), *pictures, models=models)


def asked_as_written(document: bytes, *pictures: bytes, models: Models | None = None) -> tuple[Client, Models]:
    """As `asked`, for a document that no JSON writer would write."""
    models, client = models or Models(), Client()
    call = Call(document=document, attached=pictures, context=Context(parameters={}))
    asyncio.run(asyncio.wait_for(door(models).answer(call, client), 20))
    return client, models


def untouched(models: Models) -> bool:
    """Whether the request was refused before any model heard of it."""
    return not models.encoded and not models.calls
