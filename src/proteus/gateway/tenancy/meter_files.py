"""The files of the metering log: lines appended whole, a new file when one is full, the oldest removed.

Several gateways may write to one path, and another program may move the file away: what is written goes to the file
that has the name now.
"""

from __future__ import annotations

import fcntl
import os
from datetime import UTC, datetime
from pathlib import Path

from proteus.limits_gateway import Metering as Settings

OWNER_ONLY = 0o600
FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
MOMENT = "%Y%m%dT%H%M%S.%fZ"  # of the names of full files, by which they are in order
ANY_MOMENT = "????????T??????.??????Z"


class MeterFiles:
    """For one thread. Every call raises OSError; what was added and not flushed is lost then."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.path = folder / settings.path
        self._max_bytes, self._max_files = settings.max_bytes, settings.max_files
        self._fd: int | None = None
        self._size = 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self.num_lines = 0  # written

    def open(self) -> None:
        if self._fd is not None and self._has_the_name(self._fd):
            return
        self._let_go()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, FLAGS, OWNER_ONLY)
        self._fd, self._size = fd, os.fstat(fd).st_size
        if self._size and os.pread(fd, 1, self._size - 1) != b"\n":  # whoever wrote last was stopped in a line
            self._size += os.write(fd, b"\n")

    def add(self, line: bytes) -> None:
        """Written with the next `flush`, or at once where it is the first of a new file."""
        if self._size + self._waiting_bytes + len(line) > self._max_bytes:
            self.flush()
            self._begin_new()
        self._waiting.append(line)
        self._waiting_bytes += len(line)

    def flush(self) -> None:
        """In one write, so that lines of several gateways never mix."""
        if not self._waiting:
            return
        self.open()
        fd, content = self._opened(), b"".join(self._waiting)
        written = os.write(fd, content)
        if written < len(content):  # a full disk takes a part, and tells why not the rest
            os.write(fd, content[written:])
        self.num_lines += len(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        self._size = os.fstat(fd).st_size  # other gateways write, too

    def forget(self) -> None:
        """What could not be written."""
        self._waiting, self._waiting_bytes = [], 0
        self._let_go()

    def close(self) -> None:
        self.flush()
        if self._fd is not None:
            os.fsync(self._fd)
        self._let_go()

    def _begin_new(self) -> None:
        """The full file gets the time as its name, once, whichever of several gateways finds it full."""
        fd = self._opened()
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            if self._has_the_name(fd) and os.fstat(fd).st_size:
                os.fsync(fd)
                self.path.rename(self._free_name())
        finally:
            self._let_go()
        self._remove_oldest()
        self.open()

    def _free_name(self) -> Path:
        """A later one than all there are."""
        while True:
            moment = datetime.now(UTC).strftime(MOMENT)
            path = self.path.with_name(f"{self.path.stem}-{moment}{self.path.suffix}")
            if not path.exists():
                return path

    def _remove_oldest(self) -> None:
        """`max_files` are kept, the one that is being written among them."""
        full = sorted(self.path.parent.glob(f"{_literally(self.path.stem)}-{ANY_MOMENT}{_literally(self.path.suffix)}"))
        for path in full[: max(0, len(full) - (self._max_files - 1))]:
            path.unlink(missing_ok=True)

    def _has_the_name(self, fd: int) -> bool:
        try:
            named = self.path.stat()
        except FileNotFoundError:
            return False
        own = os.fstat(fd)
        return (named.st_ino, named.st_dev) == (own.st_ino, own.st_dev)

    def _opened(self) -> int:
        if self._fd is None:
            self.open()
        if self._fd is None:
            raise OSError("the file is not open")
        return self._fd

    def _let_go(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)


def _literally(text: str) -> str:
    """Of a pattern, no character means anything but itself."""
    return "".join(f"[{one}]" if one in "*?[" else one for one in text)
