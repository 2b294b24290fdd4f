"""The demo's questions, asked one after the other of a running server, answers printed as they stream."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from proteus.client.bill import stages_table, usage_table
from proteus.client.blocking import Client
from proteus.client.errors import InvalidInput
from proteus.client.results import Answer

MAX_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoQuestion:
    picture: Path
    question: str
    expected: str


def load_questions(folder: Path) -> list[DemoQuestion]:
    """From `questions.json` of the folder, pictures beside it; raises `InvalidInput`."""
    try:
        rows = json.loads((folder / "questions.json").read_text(encoding="utf-8"))
        return [
            DemoQuestion(picture=folder / row["picture"], question=row["question"], expected=row["expected"])
            for row in rows
        ]
    except FileNotFoundError:
        raise InvalidInput(f"there is no {folder / 'questions.json'}: run this in the repository's folder") from None
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(f"{folder / 'questions.json'} is no list of picture, question, expected") from None


def run_demo(url: str, folder: Path, console: Console) -> None:
    """Ask every question of the folder, then print the tables."""
    questions = load_questions(folder)
    answers: dict[str, Answer] = {}
    with Client(url) as client:
        for number, asked in enumerate(questions, start=1):
            console.print(f"[bold]{escape(asked.picture.name)}[/bold]  {escape(asked.question)}\n  → ", end="")
            for item in client.stream(asked.question, [asked.picture], max_tokens=MAX_TOKENS, temperature=0):
                if isinstance(item, Answer):
                    answers[f"{number} {asked.picture.stem}"] = item
                    mark = "✓" if item.text.strip() == asked.expected else "✗"
                    console.print(f"  {mark} [dim]expected: {escape(asked.expected)}[/dim]")
                else:
                    console.print(item.text, end="", markup=False, highlight=False, soft_wrap=True)
    console.print()
    console.print(usage_table(answers))
    console.print(stages_table(answers))
