"""docs/moderation.md: its table is one, its class works, its verdicts are taken, its words and numbers are true."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from proteus.gateway.moderation import blur as moderation_blur
from proteus.gateway.moderation import endpoint as moderation_http
from proteus.gateway.moderation import windows as moderation_windows
from proteus.gateway.moderation.endpoint import _verdict
from proteus.gateway.moderation.moderation import OUTCOMES
from proteus.gateway.moderation.subject import Shown, Subject, Verdict
from proteus.limits_gateway import Moderation as Settings

PAGE = (Path(__file__).parents[2] / "docs" / "moderation.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def subject(text: str, width_px: int) -> Subject:
    shown = Shown(data=b"", digest="", format="png", width_px=width_px, height_px=1)
    return Subject(when="before", tenant="a", request_id="b", texts=(text,), pictures=(shown,))


def test_the_table_can_be_used() -> None:
    assert Settings.model_validate(tomllib.loads(blocks("toml")[0])["gateway"]["moderation"]).before


def test_the_verdicts_are_taken() -> None:
    lines = [line for line in blocks("json")[2].splitlines() if line]
    assert [_verdict(line.encode()) for line in lines] == [
        Verdict(),
        Verdict(refused=True, category="violence"),
        Verdict(blurred=frozenset({0}), category="faces"),
    ]


def test_the_document_has_the_fields_that_are_sent() -> None:
    told = json.loads(blocks("json")[1])
    sent = json.loads(moderation_http._document(subject("", 1)))
    assert list(told) == list(sent)
    assert list(told["pictures"][0]) == list(sent["pictures"][0])


@pytest.mark.parametrize(
    ("text", "width_px", "verdict"),
    [
        ("a Bomb", 1, Verdict(refused=True, category="violence")),
        ("a cat", 2_000, Verdict(blurred=frozenset({0}), category="large")),
        ("a cat", 10, Verdict()),
    ],
)
def test_the_class_works(text: str, width_px: int, verdict: Verdict) -> None:
    made: dict[str, Any] = {}
    exec(compile(blocks("python")[0], "moderation.md", "exec"), made)
    assert asyncio.run(made["Words"]().check(subject(text, width_px))) == verdict


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_verdict_is_told(outcome: str) -> None:
    assert f"| `{outcome}` |" in PAGE


def test_the_numbers_are_those_of_the_code() -> None:
    for number in (
        f"{moderation_windows.WINDOW_CHARS} characters wait",
        f"of {moderation_windows.SENTENCE_CHARS} characters",
        f"{moderation_http.MAX_ANSWER_BYTES:,} bytes",
        f"at most {moderation_blur.SHOWN_PX} px",
    ):
        assert number in PAGE
