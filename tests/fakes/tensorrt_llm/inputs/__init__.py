"""What makes a prompt of text into ids."""

from __future__ import annotations

from typing import Any


class DefaultInputProcessor:
    """Of every model whose checkpoint has another format than the hub's, or none: it knows no embeddings."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
