"""A stand-in for the worker that does what the first byte of a "picture" says: a way to die, to hang, or to lie."""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import time

REQUEST, REPLY = struct.Struct("<IIQ"), struct.Struct("<BQ")
PIXELS, REFUSED, REFUSED_AND_ENDS = range(3)
PIXEL_BYTES = 3 * 96 * 96 * 4

LIES = {
    b"s": REPLY.pack(PIXELS, 4) + b"\0" * 4,
    b"l": REPLY.pack(PIXELS, 1 << 60),
    b"v": REPLY.pack(77, 2) + b"{}",
    b"e": REPLY.pack(REFUSED, 1 << 60),
    b"j": REPLY.pack(REFUSED, 3) + b"{]}",
    b"u": REPLY.pack(REFUSED, 4) + b"\xff\xfe\xff\xfe",
    b"c": REPLY.pack(REFUSED, 61) + b'{"code": "internal", "what": "x", "limit": null, "fix": null}',
    b"n": REPLY.pack(REFUSED, 2) + b"[]",
}


def main() -> None:
    if sys.argv[1:] == ["no start"]:
        return
    channel = socket.socket(fileno=0)
    channel.sendall(b"\x01")
    while len(head := channel.recv(REQUEST.size, socket.MSG_WAITALL)) == REQUEST.size:
        data = channel.recv(REQUEST.unpack(head)[2], socket.MSG_WAITALL)
        if data[:1] in LIES:
            channel.sendall(LIES[data[:1]])
        elif data[:1] == b"h":
            time.sleep(60)
        elif data[:1] in (b"K", b"S", b"A"):
            os.kill(os.getpid(), {b"K": signal.SIGKILL, b"S": signal.SIGSEGV, b"A": signal.SIGALRM}[data[:1]])
        elif data[:1] == b"x":
            sys.exit(3)
        else:
            channel.sendall(REPLY.pack(PIXELS, PIXEL_BYTES) + b"\0" * PIXEL_BYTES)


main()
