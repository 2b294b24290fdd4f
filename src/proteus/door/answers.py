"""The answers to one request while they come: `n` calls to the language model, one stream of pieces, one report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from proteus.backend.fleet import Context, Fleet, LlmCall, LlmEnd, LlmEvent
from proteus.door.logprobs import as_json
from proteus.door.reply import Listener, Piece, Reply
from proteus.door.stopping import Stopping
from proteus.door.together import together
from proteus.errors import ProteusError
from proteus.language.stream import Detokenizer
from proteus.stages import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One answer that has ended."""

    index: int
    output_tokens: int
    end: LlmEnd


class Answers:
    """Of one request. `report` is asked once all have ended, with the answers in the order in which they did."""

    def __init__(
        self,
        fleet: Fleet,
        detokenizer: Detokenizer,
        reply: Reply,
        timeline: Timeline,
        report: Callable[[Sequence[Choice]], str],
    ) -> None:
        self._fleet, self._detokenizer = fleet, detokenizer
        self._reply, self._timeline, self._report = reply, timeline, report
        self._ended: list[Choice] = []
        self._stopping = Stopping(fleet.stop)

    async def follow(self, calls: Sequence[LlmCall], context: Context, listener: Listener) -> None:
        """Every event to the reply, interleaved as they come; raises the ProteusError of the first that fails.

        When nobody listens any more, the language model is told.
        """
        leaving = asyncio.create_task(self._stopping.when(listener.gone(), [call.request_key for call in calls]))
        try:
            await together(self._follow(index, call, len(calls), context) for index, call in enumerate(calls))
        finally:
            leaving.cancel()

    async def _follow(self, index: int, call: LlmCall, num_calls: int, context: Context) -> None:
        output_tokens = 0
        try:
            async with aclosing(self._fleet.generate(call, context)) as events:
                async for event in events:
                    output_tokens += len(event.token_ids)
                    if event.token_ids:
                        self._timeline.tokens(index, len(event.token_ids))
                    report = None
                    if event.end is not None:
                        self._ended.append(Choice(index=index, output_tokens=output_tokens, end=event.end))
                        report = self._report(self._ended) if len(self._ended) == num_calls else None
                    self._send(index, event, report)
        except ProteusError:
            raise  # the language model ended the stream itself
        except (Exception, asyncio.CancelledError):  # of the connection; of this task, or for another answer's sake
            await self._stopping.tell([call.request_key])
            raise

    def _send(self, index: int, event: LlmEvent, report: str | None) -> None:
        logprobs = as_json(event.logprobs, self._detokenizer) if event.logprobs else None
        self._reply.send(
            Piece(text=event.text, token_ids=event.token_ids, index=index, logprobs=logprobs, report=report)
        )
