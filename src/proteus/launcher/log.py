"""What the server's log says: how far loading is, and why it failed; and that it does not grow for ever."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MAX_BYTES = 16 << 20  # then it is begun anew, and the one before is kept beside it
LOADED = re.compile(r"successfully loaded '([^']+)'")
ERROR_ENTRY = re.compile(r"^E\d{4} \S+ +\d+ [\w.]+:\d+\] +(.*)$")
FATAL = re.compile(r"^(error:|terminate called|Signal \()")
HARMLESS = ("CudaDriverHelper has not been initialized", "Failed to initialize NVML")
# Said again, with the model's name, by the entry that follows.
REPEATED = ("ERROR: Failed to create instance",)


def read_from(log: Path, offset: int) -> str:
    """The log from byte `offset` on; empty when there is none yet."""
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(offset)
        return file.read().decode(errors="replace")


def bound(log: Path, max_bytes: int = MAX_BYTES) -> None:
    """Moves what a log of so many bytes holds to `<log>.1`. Who writes it must append, as the guardian does."""
    with suppress(OSError):  # a full disk, or no log at all: nothing is moved
        if log.stat().st_size > max_bytes:
            shutil.copyfile(log, f"{log}.1")
            os.truncate(log, 0)


def count_loaded(text: str) -> int:
    """How many different models have been loaded."""
    return len(set(LOADED.findall(text)))


def error_lines(text: str, *, max_lines: int = 20) -> list[str]:
    """The errors of a log without time stamps, repetitions and the importer's own frames; the first ones first."""
    return list(dict.fromkeys(_error_lines(text)))[:max_lines]


def _error_lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        entry = ERROR_ENTRY.match(line)
        if entry is None and not FATAL.match(line):
            continue
        message = entry[1].strip().strip('"') if entry else line
        if message.startswith(REPEATED) or any(harmless in message for harmless in HARMLESS):
            continue
        for part in message.split("\\n"):
            if part.strip() not in ("", "At:") and "<frozen importlib" not in part:
                yield part.rstrip()
