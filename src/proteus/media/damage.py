"""What a parser raises for bytes that end early or contradict themselves; `probe` turns it into a fixed text."""

from __future__ import annotations


class Damaged(Exception):
    """The file is not what its first bytes claim. Never reaches a client."""
