"""Text of a server for a terminal, which must not take orders from it."""

from __future__ import annotations

import re

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and new line


def printable(text: str) -> str:
    """Every control character as �: they move the cursor, clear the screen, set titles and clipboards."""
    return _CONTROLS.sub("\ufffd", text)
