from __future__ import annotations

import asyncio

import pytest

from proteus.backend import heartbeat


def test_the_heart_goes_on_when_what_it_does_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.0)
    beats = []

    def failing() -> None:
        beats.append(1)
        raise RuntimeError("no metrics port")

    async def scenario() -> None:
        beating = asyncio.create_task(heartbeat.beat(failing))
        while len(beats) < 3:
            await asyncio.sleep(0)
        beating.cancel()

    asyncio.run(asyncio.wait_for(scenario(), 10))
    assert len(beats) >= 3
