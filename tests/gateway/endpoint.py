"""An HTTP endpoint that answers with the bytes it was given, whatever they are, and keeps what it was sent."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Endpoint:
    url: str
    bodies: list[bytes] = field(default_factory=list)

    @property
    def subjects(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]


def answered(document: object, status: str = "200 OK", *headers: str) -> bytes:
    """A whole answer that ends its connection."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(head).encode() + body


@contextmanager
def endpoint(answer: bytes, *, ends: bool = True) -> Iterator[Endpoint]:
    """On a free port; without `ends` a connection stays open when its answer is out."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        told = Endpoint(f"http://127.0.0.1:{listening.getsockname()[1]}/check")
        open_ones: list[socket.socket] = []

        def serve(connection: socket.socket) -> None:
            with suppress(OSError):
                head, _, body = _read(connection, b"").partition(b"\r\n\r\n")
                length = next(
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                )
                while len(body) < length:
                    body += connection.recv(1 << 20)
                told.bodies.append(body)
                connection.sendall(answer)
                if ends:
                    connection.shutdown(socket.SHUT_RDWR)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                open_ones.append(connection)
                threads.append(threading.Thread(target=serve, args=(connection,)))
                threads[-1].start()

        threads: list[threading.Thread] = []
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield told
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for connection in open_ones:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
            for connection in open_ones:
                connection.close()


def _read(connection: socket.socket, data: bytes) -> bytes:
    """Up to the end of the head."""
    while b"\r\n\r\n" not in data:
        if not (more := connection.recv(1 << 16)):
            raise OSError
        data += more
    return data
