"""The demo: questions, asked one after the other of a running server, answers printed as they stream; a drawing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from proteus.client.bill import stages_table, usage_table
from proteus.client.blocking import Client
from proteus.client.draw_bill import drawing_lines, picture_line
from proteus.client.errors import InvalidInput
from proteus.client.printable import printable
from proteus.client.results import Answer
from proteus.client.terminal import View, shows_pictures

MAX_TOKENS = 16
PROMPT = "a red circle at the top left and a blue square in the centre on a white background"
SEED = 7


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


def run_demo(url: str, folder: Path, drawing: Path, console: Console) -> None:
    """Of what the server's contract names: ask every question of the folder, draw a picture to the file `drawing`."""
    with Client(url) as client:
        contract = client.contract()
        if "image" in contract:
            _ask(client, load_questions(folder), console)
        if "draw" in contract:
            _draw(client, drawing, console)


def _ask(client: Client, questions: list[DemoQuestion], console: Console) -> None:
    answers: dict[str, Answer] = {}
    for number, asked in enumerate(questions, start=1):
        console.print(f"[bold]{escape(asked.picture.name)}[/bold]  {escape(asked.question)}\n  → ", end="")
        for item in client.stream(asked.question, [asked.picture], max_tokens=MAX_TOKENS, temperature=0):
            if isinstance(item, Answer):
                answers[f"{number} {asked.picture.stem}"] = item
                mark = "✓" if item.text.strip() == asked.expected else "✗"
                console.print(f"  {mark} [dim]expected: {escape(asked.expected)}[/dim]")
            else:
                console.print(printable(item.text), end="", markup=False, highlight=False, soft_wrap=True)
    console.print()
    console.print(usage_table(answers))
    console.print(stages_table(answers))


def _draw(client: Client, file: Path, console: Console) -> None:
    console.print(f"[bold]draw[/bold]  {PROMPT}")
    view = View.on(console, pictures=1, show_previews=shows_pictures(console))
    made, paths = view.follow(
        client.stream_draw(PROMPT, seed=SEED, preview_every=1), lambda picture: picture.save(file)
    )
    lines = [picture_line(paths[picture.index], picture) for picture in made.pictures] + [drawing_lines(made)]
    console.print("\n".join(lines), markup=False, soft_wrap=True)
