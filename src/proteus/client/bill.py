"""An answer's usage, stage times and what the caches saved: for a person to look at, and as one document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich import box
from rich.bar import Bar
from rich.console import Group
from rich.table import Table
from rich.text import Text

from proteus.client.printable import printable
from proteus.client.results import Answer, Choice

BAR_CHARS = 40


def bill(answer: Answer) -> Group:
    """Tokens and finish reason, the stages one after the other, the waits for tokens, what the caches saved."""
    usage = answer.usage
    tokens = (
        f"tokens  {usage.text_tokens} text + {usage.visual_tokens} visual in, {usage.output_tokens} out"
        f"; cached: {usage.cached_tokens}; finish: {', '.join(choice.finish_reason for choice in answer.choices)}"
    )
    lines = [line for line in (_waits(answer), _savings(answer)) if line]
    return Group(Text(printable(tokens)), _waterfall(answer.stages_ms), *(Text(printable(line)) for line in lines))


def _waterfall(stages_ms: Mapping[str, float]) -> Table:
    """Each stage's bar begins where that of the stage before has ended."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    table.add_column(no_wrap=True)
    table.add_column(width=BAR_CHARS)
    stages = {name: ms for name, ms in stages_ms.items() if name != "total"}
    total_ms, begin_ms = sum(stages.values()), 0.0
    for name, ms in stages.items():
        bar = Bar(total_ms, begin_ms, begin_ms + ms, width=BAR_CHARS) if total_ms else ""
        table.add_row(f"{ms:.1f} ms", Text(printable(name)), bar)
        begin_ms += ms
    return table


def _waits(answer: Answer) -> str:
    parts = [f"first token after {answer.ttft_ms:.1f} ms"] if answer.ttft_ms is not None else []
    if (gaps := answer.inter_token_ms) is not None:
        parts.append(f"between tokens {gaps['mean']:.1f} ms, at most {gaps['max']:.1f}")
    if "total" in answer.stages_ms:
        parts.append(f"total {answer.stages_ms['total']:.1f} ms")
    return "; ".join(parts)


def _savings(answer: Answer) -> str:
    """Of the caches that were asked."""
    asked = {name: use for name, use in answer.caches.items() if use["lookups"]}
    return "; ".join(f"{name} cache: {_saving(use)}" for name, use in asked.items())


def _saving(use: Mapping[str, float]) -> str:
    if not use["hits"]:
        return "miss"
    hits = "hit" if use["hits"] == use["lookups"] else f"{use['hits']:.0f} of {use['lookups']:.0f} hit"
    return f"{hits}, saved {use['saved_ms']:.1f} ms"


def bill_json(answer: Answer) -> str:
    """One JSON document: the text, the answers, and all that the server's report says."""
    document = {
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "usage": asdict(answer.usage),
        "stages_ms": dict(answer.stages_ms),
        "ingress_ms": dict(answer.ingress_ms),
        "ttft_ms": answer.ttft_ms,
        "inter_token_ms": answer.inter_token_ms,
        "caches": answer.caches,
        "media": answer.media,
        "pictures": answer.pictures,
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
