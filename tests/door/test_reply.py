"""Who waits for an answer, and who does not any more."""

from __future__ import annotations

import asyncio

from proteus.door.reply import Listener


class Asked:
    """Its server never says whether the client is there."""

    async def has_left(self) -> bool:
        await asyncio.Event().wait()
        raise AssertionError


def test_who_was_stopped_by_name_is_gone_without_a_question_to_the_server() -> None:
    async def scenario() -> None:
        listener = Listener(Asked(), lambda: 3600.0)
        leaving = asyncio.create_task(listener.gone())
        await asyncio.sleep(0)
        listener.stop()
        await leaving

    asyncio.run(asyncio.wait_for(scenario(), 10))
