"""Requests that their clients gave a name, so that another call can stop them, whatever stage they are in.

A name counts only together with tenant and cache scope: whoever names another's request is told what anyone is told
who names none at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from proteus.door.arrival import Call
from proteus.door.document import Asked, DocumentLimit, Part, RequestId, parse
from proteus.errors import InvalidRequest

_IS_STOP = re.compile(rb'\s*\{\s*"stop"\s*:\s*\{')
Name = tuple[str, str, str]  # tenant, cache scope, request id


class StopTarget(Part):
    request_id: RequestId
    cache_scope: str = ""
    tenant: str = ""


class StopRequest(Part):
    """The whole document of a call that stops another."""

    stop: StopTarget

    @staticmethod
    def is_one(document: bytes) -> bool:
        """Whether the document begins as one; it may hold mistakes."""
        return _IS_STOP.match(document) is not None

    @classmethod
    def parse(cls, document: bytes, limit: DocumentLimit) -> StopRequest:
        """Raises InvalidRequest naming the field, its value, the limit and the fix."""
        return parse(cls, document, limit)


class NamedRequests:
    """For one event loop; knows nothing of a request that has ended."""

    def __init__(self) -> None:
        self._stops: dict[Name, Callable[[], None]] = {}

    def __len__(self) -> int:
        """Named requests that are open."""
        return len(self._stops)

    @contextmanager
    def open(self, request: Asked, stop: Callable[[], None]) -> Iterator[None]:
        """For the block, `stop` is called by who stops the request; raises InvalidRequest for a name in use."""
        if request.request_id is None:
            yield
            return
        name = request.owner, request.cache_scope, request.request_id
        if name in self._stops:
            raise InvalidRequest(
                "request_id is that of another open request",
                limit="one open request of that id for each tenant and cache scope",
                fix="choose another id, or stop that request first",
            )
        self._stops[name] = stop
        try:
            yield
        finally:
            del self._stops[name]

    def answer(self, call: Call, limit: DocumentLimit) -> str:
        """The report to a document that stops a request, alike whether there is one; raises InvalidRequest."""
        call.refuse_parameters()
        request = StopRequest.parse(call.document, limit)
        if call.attached:
            raise InvalidRequest("a document that stops a request came with pictures", fix="send no pictures with it")
        return json.dumps({"stopped": self._stop(request.stop)})

    def _stop(self, target: StopTarget) -> int:
        """How many requests were stopped: 1, or 0 where none of that tenant and scope has the id."""
        stop = self._stops.get((target.tenant or target.cache_scope, target.cache_scope, target.request_id))
        if stop is not None:
            stop()
        return int(stop is not None)
