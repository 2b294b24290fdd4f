"""An answer's usage and stage times, as lines and tables for a person and as one document for a program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from proteus.client.results import Answer, Choice


def bill_lines(answer: Answer) -> str:
    """Tokens, finish reason and stage times in two lines."""
    usage = answer.usage
    stages = " · ".join(f"{name} {ms:.1f}" for name, ms in answer.stages_ms.items())
    return (
        f"tokens  {usage.text_tokens} text + {usage.visual_tokens} visual in, {usage.output_tokens} out"
        f"; cached: {usage.cached_tokens}; finish: {', '.join(choice.finish_reason for choice in answer.choices)}\n"
        f"ms      {stages}"
    )


def bill_json(answer: Answer) -> str:
    """One JSON document: text, finish_reason, usage, stages_ms, choices."""
    document = {
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "usage": asdict(answer.usage),
        "stages_ms": dict(answer.stages_ms),
        "choices": [_choice(choice) for choice in answer.choices],
    }
    return json.dumps(document, ensure_ascii=False, indent=2)


def _choice(choice: Choice) -> dict[str, Any]:
    document: dict[str, Any] = {"text": choice.text, "finish_reason": choice.finish_reason}
    if choice.logprobs:
        document["logprobs"] = [
            asdict(entry)
            | {"bytes": list(entry.bytes)}
            | {"top_logprobs": [asdict(likely) | {"bytes": list(likely.bytes)} for likely in entry.top_logprobs]}
            for entry in choice.logprobs
        ]
    return document


def usage_table(answers: Mapping[str, Answer]) -> Table:
    """A row for each named answer: token counts, finish reason, where the visual tokens came from."""
    table = _table("usage, tokens")
    for column in ("text", "visual", "output", "cached"):
        table.add_column(column, justify="right")
    table.add_column("finish")
    table.add_column("picture")
    for name, answer in answers.items():
        usage = answer.usage
        counts = (usage.text_tokens, usage.visual_tokens, usage.output_tokens, usage.cached_tokens)
        table.add_row(name, *map(str, counts), answer.finish_reason, ", ".join(answer.pictures))
    return table


def stages_table(answers: Mapping[str, Answer]) -> Table:
    """A column of stage times for each named answer; a stage that an answer did not pass is left blank."""
    stages = list(dict.fromkeys(stage for answer in answers.values() for stage in answer.stages_ms))
    table = _table("stage times, ms")
    for name in answers:
        table.add_column(name, justify="right")
    for stage in stages:
        times = (answer.stages_ms for answer in answers.values())
        table.add_row(stage, *(f"{of[stage]:.1f}" if stage in of else "" for of in times))
    return table


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    return table
