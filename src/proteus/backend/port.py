"""Requests to a model with a loop of its own <-> its engine: work with events as responses or into a mailbox, collect,
stop. How tasks and news are said in tensors, a `Wire` of each model knows.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from proteus.backend.guard import Responses, known, responding
from proteus.backend.mailbox import Mailbox
from proteus.backend.tensors import Array, read, read_bytes
from proteus.errors import InvalidRequest, ProteusError

CANCEL_POLL_S = 0.1
LEFT_S = 60.0  # a door with an open request collects every second
COLLECT_S = 1.0  # a collector waits no longer for an event; that it was answered says that this model lives


class Keyed(Protocol):
    @property
    def request_key(self) -> bytes: ...


Task = TypeVar("Task", bound=Keyed)
News = TypeVar("News")  # an event or a failure
# The same, of protocols that only take or only give them.
Task_co = TypeVar("Task_co", bound=Keyed, covariant=True)
Task_contra = TypeVar("Task_contra", contravariant=True)
News_co = TypeVar("News_co", covariant=True)
News_contra = TypeVar("News_contra", contravariant=True)


class Engine(Protocol[Task_contra, News_co]):
    def submit(self, task: Task_contra, emit: Callable[[News_co], None], /) -> None: ...

    def cancel(self, request_key: bytes) -> None: ...

    def close(self) -> None: ...


class Wire(Protocol[Task_co, News_contra]):
    """Tensors of one model."""

    def read(self, request: Any) -> Task_co:
        """Raises InvalidRequest; a client chose every value."""
        ...

    def error_of(self, news: News_contra) -> ProteusError | None:
        """Of the last news of a task that failed."""
        ...

    def is_last(self, news: News_contra) -> bool: ...

    def outputs(self, news: News_contra) -> dict[str, Array]:
        """A response with one event."""
        ...

    def packed(self, posted: Sequence[tuple[bytes, News_contra]]) -> dict[str, Array]:
        """A response to a collector; each with its request's key."""
        ...


class Port(Generic[Task, News]):
    """Serves requests of four kinds, whatever the engine makes."""

    def __init__(
        self, engine: Engine[Task, News], wire: Wire[Task, News], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine, self._wire, self._clock_s = engine, wire, clock_s
        self._mailboxes: OrderedDict[bytes, tuple[float, Mailbox[tuple[bytes, News]]]] = (
            OrderedDict()
        )  # used: at the end
        self._open = set[Emitter[News]]()
        self._collectors = ThreadPoolExecutor(4, thread_name_prefix="collect")

    def serve(self, request: Any) -> None:
        """Begin to answer one request; every answer and error goes to the request's own responses."""
        with responding(request) as responses:
            if _flag(request, "stop"):
                self._engine.cancel(_key(request, "request_key"))
                responses.close()
            elif _flag(request, "collect"):
                mailbox = self._mailbox(_key(request, "mailbox"))
                self._collectors.submit(self._collect, responses, mailbox)
            elif (mailbox_key := read_bytes(request, "mailbox")) is not None:
                task = self._wire.read(request)
                self._engine.submit(task, _posting(task.request_key, self._mailbox(mailbox_key)))
                responses.close()
            else:
                self._submit(self._wire.read(request), responses)

    def look(self) -> None:
        """Cancel the requests whose clients have left; called now and then, for an event may be long in coming."""
        for emitter in tuple(self._open):
            emitter.look()

    def close(self) -> None:
        self._engine.close()
        for _, mailbox in self._mailboxes.values():
            mailbox.close()
        self._collectors.shutdown()

    def _submit(self, task: Task, responses: Responses) -> None:
        """The events become responses of the request itself."""
        emitter = Emitter(self._wire, responses, partial(self._engine.cancel, task.request_key), self._open.discard)
        self._open.add(emitter)
        try:
            self._engine.submit(task, emitter)
        except Exception:
            self._open.discard(emitter)
            raise

    def _mailbox(self, key: bytes) -> Mailbox[tuple[bytes, News]]:
        """The mailbox of that name, new or not; those that nobody asks for any more are dropped."""
        now_s = self._clock_s()
        _, mailbox = self._mailboxes.pop(key, (now_s, Mailbox()))
        self._mailboxes[key] = now_s, mailbox
        while next(iter(self._mailboxes.values()))[0] < now_s - LEFT_S:
            self._mailboxes.popitem(last=False)
        return mailbox

    def _collect(self, responses: Responses, mailbox: Mailbox[tuple[bytes, News]]) -> None:
        try:
            responses.send(self._wire.packed(mailbox.collect(COLLECT_S)), final=True)
        except Exception as error:
            responses.fail(known(error))


class Emitter(Generic[News]):
    """Where the engine's events go: one response each, and from time to time a look whether anybody listens.

    `ended` is called with the emitter after the last one.
    """

    def __init__(
        self,
        wire: Wire[Any, News],
        responses: Responses,
        cancel: Callable[[], None],
        ended: Callable[[Emitter[News]], None],
    ) -> None:
        self._wire, self._responses = wire, responses
        self._cancel, self._ended = cancel, ended
        self._lock = threading.Lock()  # nobody may look at responses while the last of them goes out
        self._look_at_s = time.monotonic() + CANCEL_POLL_S

    def __call__(self, news: News) -> None:
        try:
            self._send(news)
        except Exception as error:  # to raise is to cancel: the engine will tell nothing more
            self._ended(self)
            with self._lock:
                self._responses.fail(known(error))
            raise
        if self._wire.is_last(news):
            self._ended(self)
        elif time.monotonic() >= self._look_at_s:
            self.look()

    def look(self) -> None:
        """A client that left cancels its request."""
        self._look_at_s = time.monotonic() + CANCEL_POLL_S
        with self._lock:
            has_left = self._responses.is_cancelled()
        if has_left:
            self._cancel()

    def _send(self, news: News) -> None:
        with self._lock:
            if (error := self._wire.error_of(news)) is not None:
                self._responses.fail(known(error))
            else:
                self._responses.send(self._wire.outputs(news), final=self._wire.is_last(news))


def _posting(request_key: bytes, mailbox: Mailbox[tuple[bytes, News]]) -> Callable[[News], None]:
    return lambda news: mailbox.put((request_key, news))


def _flag(request: Any, name: str) -> bool:
    value = read(request, name)
    return value is not None and bool(value.reshape(-1)[0])


def _key(request: Any, name: str) -> bytes:
    key = read_bytes(request, name)
    if key is None:
        raise InvalidRequest(f"{name} is missing", fix=f"send the {name} with stop or collect")
    return key
