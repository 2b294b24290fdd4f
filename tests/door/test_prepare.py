"""Requests with pictures while they are read, and text beside them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from proteus.door import prepare
from tests.door.test_chat import BLUE, DEMO, RED, Client, Models, call, door, run


def test_text_is_answered_while_every_thread_for_pictures_is_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """To digest some megabytes takes longer than all that is done for text, which used to wait behind it."""
    go_on, begun = threading.Event(), threading.Semaphore(0)
    read = prepare.read

    def slow(*arguments: Any) -> Any:
        begun.release()
        assert go_on.wait(20)
        return read(*arguments)

    monkeypatch.setattr(prepare, "read", slow)

    async def scenario() -> None:
        chat = door(Models())
        clients = [Client() for _ in range(2 * DEMO.cores)]
        asked = [asyncio.create_task(chat.answer(call("What is it?", RED, BLUE), client)) for client in clients]
        for _ in range(DEMO.cores):
            await asyncio.to_thread(begun.acquire)
        text = Client()
        await chat.answer(call("Hello"), text)
        assert text.text == "Hi!" and not any(client.text for client in clients)
        go_on.set()
        await asyncio.gather(*asked)
        assert all(client.text == "Hi!" for client in clients)

    run(scenario())
