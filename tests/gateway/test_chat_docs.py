"""docs/gateway.md has a word for every field of chat and every error."""

from __future__ import annotations

from pathlib import Path

import pytest

from proteus.gateway.errors import STATUS_OF
from proteus.gateway.openai import account
from proteus.gateway.openai import chat_fields as known

PAGE = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text(encoding="utf-8")
CHAT = PAGE.partition("\n## Chat\n")[2].partition("\n## ")[0]
ERRORS = PAGE.partition("\n## Errors\n")[2]
FOR_WHO_STARTS_IT = {"cannot_listen"}
WORDS = {
    *known.CHAT.served,
    *known.CHAT.neutral,
    *known.CHAT.refused,
    *known.STREAM_OPTIONS.served,
    *known.STREAM_OPTIONS.neutral,
    *known.ROLES,
    *known.REFUSED_ROLES,
    *known.LATENCY_CLASSES,
    *known.REFUSED_TIERS,
    *known.REFUSED_DETAILS,
    *account.TOLD,
}


@pytest.mark.parametrize("word", sorted(WORDS))
def test_every_field_of_chat_is_told(word: str) -> None:
    assert f"`{word}`" in CHAT


@pytest.mark.parametrize("code", sorted(STATUS_OF.keys() - FOR_WHO_STARTS_IT))
def test_every_error_is_told_with_its_status(code: str) -> None:
    (row,) = (line for line in ERRORS.splitlines() if line.startswith("|") and f"`{code}`" in line)
    assert row.startswith(f"| {STATUS_OF[code]} |")
