"""What the documents name exists: targets, commands, options, files, and code that parses."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from proteus.cli import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")
CODE_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def blocks(text: str, language: str) -> list[str]:
    return [body for found, body in CODE_BLOCK.findall(text) if found == language]


def commands(text: str, name: str) -> list[list[str]]:
    """The words after `name` in every shell block and inline code that starts with it."""
    lines = [line for block in blocks(text, "sh") for line in block.splitlines()] + INLINE.findall(text)
    split = [shlex.split(line, comments=True) for line in lines if re.match(rf"{name} [a-z-]", line)]
    return [words[1:] for words in split]


@pytest.fixture(scope="module")
def group() -> TyperGroup:
    """Every command of `proteus`."""
    return typer.main.get_group(app)


@every_document
def test_every_make_target_named_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {words[0] for words in commands(document.read_text(encoding="utf-8"), "make")}
    assert named <= targets


@every_document
def test_every_proteus_command_and_option_named_exists(document: Path, group: TyperGroup) -> None:
    for subcommand, *words in commands(document.read_text(encoding="utf-8"), "proteus"):
        assert subcommand in group.commands
        command = group.commands[subcommand]
        if words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words[0]]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word.split("=")[0] for word in words if word.startswith("--")} <= known


@every_document
def test_every_link_leads_to_a_file(document: Path) -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]+)", document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("block", blocks(README, "python"))
def test_readme_python_compiles(block: str) -> None:
    compile(block, "README.md", "exec")


@pytest.mark.parametrize("block", blocks(README, "sh"))
def test_readme_shell_parses(block: str) -> None:
    subprocess.run(["sh", "-n"], input=block, text=True, check=True)


def test_the_tree_of_the_readme_names_what_is_there() -> None:
    tree = blocks(README, "")[0]
    package = ROOT / "src/proteus"
    missing = []
    for line in tree.splitlines():
        base = package if line.startswith("  ") else ROOT
        names = re.findall(r"(?:^ *|(?<=  ))([\w./]+(?:/|\.py|\.toml))(?= )", line)
        missing += [name for name in names if not (base / name).exists()]
    assert missing == []


def test_the_readme_stays_short() -> None:
    assert len(README.splitlines()) <= 150
