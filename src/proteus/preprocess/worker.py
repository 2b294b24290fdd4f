"""A process that decodes pictures for a `DecodePool`: `python -m proteus.preprocess.worker DEPLOYMENT`.

Its standard input is a socket. Once it has started it can open no file, write none, and take no more address space than
the deployment allows. It ends when the pool closes the socket, or has gone; the kernel ends it when a picture takes
longer than the pool would wait.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from proteus.deployment import Deployment
from proteus.errors import MediaTooLarge, ProteusError
from proteus.limits import DecodeLimits
from proteus.preprocess.openers import keep_decoders_small
from proteus.preprocess.picture import Preprocess
from proteus.preprocess.profile import LAB, recolour
from proteus.preprocess.wire import READY, REPLY, REQUEST, Size, Verdict, pack_error, receive

ALARM_AFTER_S = 1.0  # the pool's own clock comes first
Decoding = Callable[[bytes, Size | None], npt.NDArray[np.float32]]  # bytes and the size to make of them -> pixels
REST_S = 1.0  # without a picture for so long, it gives back what the last one needed


def serve(deployment_file: str, make: Callable[[Deployment], Decoding]) -> None:
    """Do what `make` gives for every picture, until the socket closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    deployment = Deployment.load(Path(deployment_file))
    decoding = make(deployment)
    keep_decoders_small()
    recolour(None, LAB)  # whatever is made on first use is made now
    channel = socket.socket(fileno=0)
    give_back = ctypes.CDLL(None).malloc_trim
    _confine(deployment.decode.memory_bytes)
    channel.sendall(READY)
    while True:
        if not select.select([channel], [], [], REST_S)[0]:
            give_back(0)
            select.select([channel], [], [])
        if not _answer(channel, decoding, deployment.decode):
            return


def _confine(memory_bytes: int) -> None:
    """Take away what decoding does not need. What libraries print goes nowhere from here on, our own errors do."""
    sys.stderr = os.fdopen(os.dup(2), "w")
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    own_pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = {
        resource.RLIMIT_AS: own_pages * resource.getpagesize() + memory_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: sink + 1,
    }
    for kind, value in limits.items():
        resource.setrlimit(kind, (value, value))


def _answer(channel: socket.socket, decoding: Decoding, limits: DecodeLimits) -> bool:
    """One picture; False when there are no more."""
    head = bytearray(REQUEST.size)
    try:
        receive(channel, memoryview(head))
    except EOFError:
        return False
    width_px, height_px, num_bytes = REQUEST.unpack(head)
    signal.setitimer(signal.ITIMER_REAL, limits.timeout_ms / 1000 + ALARM_AFTER_S)  # not handled: it ends the process
    try:
        data = bytearray(num_bytes)
        receive(channel, memoryview(data))
        pixels = decoding(bytes(data), (width_px, height_px) if width_px else None)
        _reply(channel, Verdict.PIXELS, pixels.data.cast("B"))
    except ProteusError as error:
        _reply(channel, Verdict.REFUSED, memoryview(pack_error(error)))
    except MemoryError:
        _reply(channel, Verdict.REFUSED_AND_ENDS, memoryview(pack_error(_too_much_memory(limits))))
        return False
    signal.setitimer(signal.ITIMER_REAL, 0)
    return True


def _reply(channel: socket.socket, verdict: Verdict, body: memoryview) -> None:
    channel.sendall(REPLY.pack(verdict, len(body)))
    channel.sendall(body)


def _too_much_memory(limits: DecodeLimits) -> MediaTooLarge:
    return MediaTooLarge(
        "the picture needs more memory to decode than it may have",
        limit=f"[decode] memory_bytes = {limits.memory_bytes:,}",
        fix="send a smaller picture",
    )


if __name__ == "__main__":
    serve(sys.argv[1], Preprocess.from_deployment)
