"""One connection: uvicorn's protocol on llhttp, with limits of time, size and number, and no second reading of a byte.

llhttp refuses what requests are smuggled with (bare LF, folded lines, Content-Length beside Transfer-Encoding), which
h11 takes, and is 25 times as fast; docs/hostile_clients.md has the table. What both let pass, protocol_head.py refuses.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from proteus.gateway.errors import UploadTooSlow
from proteus.gateway.http.connections import Connections, malformed, ready_made
from proteus.gateway.http.protocol_head import MAX_HEADERS, why_bad

MAX_FRAMING_BYTES = 1 << 20  # of chunk sizes and extensions in one body; 58 MB in chunks of a byte take minutes
MAX_DROPPED_BYTES = 1 << 24  # that a client may send after its answer
LINGER_S = 2.0  # for it to read that answer
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"  # as uvicorn writes it, before any head
MIN_READ_BYTES = 4_096  # in `send_timeout_ms`; a byte now and then would keep a buffer for days


# Of what it keeps unsent, the kernel wants a third gone before it takes more. By itself it keeps 4 MB: who reads 40 kB
# a second would seem to read nothing for half a minute.
UNSENT_BYTES = 1 << 16
# A client whose line was cut says nothing: it is asked after half a minute, three times.
ALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


class Refused(Exception):
    """Raised through the parser, which ends there."""

    def __init__(self, reason: str, what: str) -> None:
        super().__init__(what)
        self.reason, self.what = reason, what


class Line:
    """A connection as its answering side has it: when that is done, the protocol decides how to hang up.

    The head of an answer leaves with what comes next, in one write.
    """

    def __init__(self, transport: asyncio.Transport, hang_up: Callable[[], None]) -> None:
        self._transport, self.is_closing = transport, transport.is_closing
        self.hang_up = hang_up
        self._head: bytes | None = None
        self._awaits_head = True

    def begin(self) -> None:
        """The next answer."""
        self._awaits_head = True

    def write(self, data: bytes) -> None:
        if self._awaits_head and data != CONTINUE:
            self._head, self._awaits_head = data, False
        elif self._head is not None:
            head, self._head = self._head, None
            self._transport.writelines((head, data))
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """A head that nothing follows."""
        head, self._head = self._head, None
        if head is not None and not self.is_closing():
            self._transport.write(head)

    def close(self) -> None:
        self.flush()
        self.hang_up()


class GatewayProtocol(HttpToolsProtocol):
    """Requests come one after the other: who sends a second before the first is answered gets the first answer only."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=False)
        self._doors, self._limits = connections, connections.limits
        self._address: str | None = None  # None: it was refused, and is no open connection
        self._reading_head = True
        self._head_bytes = self._body_bytes = self._raw_bytes = 0
        self._deaf = False  # nothing more is read of what comes
        self._dropped_bytes = 0
        self._late: asyncio.TimerHandle | None = None  # for a head, or for the end of a refused connection
        self._unread: asyncio.TimerHandle | None = None
        self._refusal: Refused | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        address = str((transport.get_extra_info("peername") or ("",))[0])
        refusal = self._doors.enter(address)
        if refusal is not None:
            self._deaf = True
            self.parser = None  # type: ignore[assignment]  # each would keep the other until garbage is looked for
            self.transport = transport
            transport.write(refusal)
            transport.close()
            return
        self._address = address
        super().connection_made(transport)
        self._line = Line(transport, self._hang_up)
        _tune(transport.get_extra_info("socket"))
        transport.set_write_buffer_limits(high=0)  # told as soon as anything is not taken
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._address is None:
            return
        self._doors.leave(self._address)
        self._line.hang_up = self.transport.close
        self._cancel_timers()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > MAX_DROPPED_BYTES:
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        if not self._reading_head:
            self._raw_bytes += len(data)
        elif not self._is_answering():
            self._await_head()
        self._head_bytes += len(data) if self._reading_head else 0
        try:
            self.parser.feed_data(data)
            self._check_sizes()
        except httptools.HttpParserUpgrade:
            self._refuse(Refused("upgrade", "the connection cannot be upgraded"))
        except httptools.HttpParserError:
            self._refuse(self._refusal or Refused("malformed", "the request is no valid HTTP"))
        except Refused as refusal:
            self._refuse(refusal)

    # What the parser tells.

    def on_message_begin(self) -> None:
        if self._is_answering():
            raise self._stop(Refused("pipelined", "a request came before the last one was answered"))
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._reading_head:
            return  # a trailer: nobody looks at it
        if len(self.headers) >= MAX_HEADERS:
            raise self._stop(Refused("head_size", f"there are more than {MAX_HEADERS} headers"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            raise self._stop(Refused("upgrade", "the connection cannot be upgraded"))
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > self._limits.max_header_bytes:
            raise self._stop(self._head_too_large())
        bad = why_bad(self.parser.get_http_version(), self.url, self.headers)
        if bad is not None:
            raise self._stop(Refused("malformed", bad))
        self._reading_head = False
        self._head_bytes = self._body_bytes = self._raw_bytes = 0
        self._forget_late()
        super().on_headers_complete()
        self._line.begin()
        self.cycle.transport = self._line  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._reading_head = True
        super().on_message_complete()

    # What the answering side tells.

    def on_response_complete(self) -> None:
        self._line.flush()
        super().on_response_complete()
        if (self._deaf or not self._reading_head) and not self.transport.is_closing():
            self._hang_up()

    def _hang_up(self) -> None:
        """After an answer that is the last one: of who still sends, the rest is read and dropped."""
        if self._reading_head and not self._deaf:
            self.transport.close()
            return
        if not self._deaf:
            self._doors.refuse("body_unwanted", self._address or "")
        self._linger()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._watch_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    # Limits.

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _stop(self, refusal: Refused) -> Refused:
        """To be raised through the parser, which tells only that something was."""
        self._refusal = refusal
        return refusal

    def _head_too_large(self) -> Refused:
        return Refused("head_size", f"the head of the request is over {self._limits.max_header_bytes:,} bytes")

    def _check_sizes(self) -> None:
        if self._reading_head and self._head_bytes > self._limits.max_header_bytes and not self._is_answering():
            raise self._head_too_large()
        if not self._reading_head and self._raw_bytes - self._body_bytes > MAX_FRAMING_BYTES:
            raise Refused("framing", f"the body has over {MAX_FRAMING_BYTES:,} bytes of chunk framing")

    def _refuse(self, refusal: Refused) -> None:
        """Nothing more is read. What is being answered is answered, unless it is its own body that is bad."""
        self._deaf = True
        self._doors.refuse(refusal.reason, self._address or "")
        if self._is_answering():
            if self._reading_head:
                self.cycle.keep_alive = False
                return
            if self.cycle.response_started:
                self.transport.abort()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(ready_made(malformed(refusal.what)))
        self._linger()

    def _await_head(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(self._limits.header_timeout_ms / 1e3, self._head_is_late)

    def _head_is_late(self) -> None:
        self._deaf = True
        self._doors.refuse("head_late", self._address or "")
        self.transport.write(
            ready_made(
                UploadTooSlow(
                    "the headers did not come in time",
                    limit=f"[gateway.http] header_timeout_ms = {self._limits.header_timeout_ms:,}",
                    fix="send them at once",
                )
            )
        )
        self._linger()

    def _linger(self) -> None:
        """To close with bytes unread resets the connection, and the answer may be lost on its way."""
        self._deaf = True
        self._forget_late()
        self._unset_keepalive_if_required()
        self.transport.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._late = self.loop.call_later(LINGER_S, self._lingered)

    def _lingered(self) -> None:
        if self.transport.get_write_buffer_size():  # as long as it reads: see _reads_too_little
            self._late = self.loop.call_later(LINGER_S, self._lingered)
        else:
            self.transport.abort()

    def _watch_reading(self) -> None:
        size = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(self._limits.send_timeout_ms / 1e3, self._reads_too_little, size)

    def _reads_too_little(self, before_bytes: int) -> None:
        if self.transport.get_write_buffer_size() > before_bytes - MIN_READ_BYTES:
            self._doors.refuse("not_read", self._address or "")
            self.transport.abort()
        else:
            self._watch_reading()

    def _forget_late(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _cancel_timers(self) -> None:
        self._forget_late()
        self.resume_writing()


def _tune(connection: socket.socket) -> None:
    """Sends at once, keeps little unsent, and notices a peer that vanished."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
