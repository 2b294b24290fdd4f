"""The runbook and the pages of GPU hosts name only what exists: commands, flags, targets, files, values, links."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from proteus.cli.commands import app
from tests.docker.helm_chart import is_value

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NAMES = (
    "advisories",
    "docker",
    "encoder_pool",
    "engines",
    "gpu",
    "kubernetes",
    "operating",
    "runbook",
    "security",
    "tensorrt",
    "tensorrt_llm",
)
PAGES = [DOCS / f"{name}.md" for name in NAMES if (DOCS / f"{name}.md").exists()]
COMMANDS = typer.main.get_command(app)
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split())  # type: ignore[index]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
FOLDERS = ("client", "deployments", "docker", "docs", "export", "model_repository", "perf", "src", "tests", "tools")
PATHS = re.compile(rf"(?:^|[\s=\"'])((?:{'|'.join(FOLDERS)})/[\w./*-]*)")
WHERE = ("docker exec proteus ", "docker compose -f docker/compose.yaml --profile cpu exec server-cpu ")


def code(page: Path) -> Iterator[str]:
    """Every command of its fenced blocks, a line each, and every span of code in its text."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```(?:sh|bash)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            yield line.strip()
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from (span.strip() for span in re.findall(r"`([^`\n]+)`", text))


def words_of(line: str) -> list[str]:
    for prefix in WHERE:
        line = line.removeprefix(prefix)
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return []  # a span with one quotation mark is no command


def beginning(*first: str) -> list[Any]:
    """(page, words) of every command that begins with one of these, once for each page."""
    found: dict[str, Any] = {}
    for page in PAGES:
        for line in code(page):
            words = words_of(line)
            if len(words) > 1 and words[0] in first:
                found.setdefault(f"{page.stem}: {' '.join(words)}", words)
    return [pytest.param(words, id=name[:90]) for name, words in found.items()]


class NoCommand(Exception):
    """The command line does not know this command, option or argument."""


def parse(words: list[str]) -> None:
    """Words after `proteus`: each command and option known, no argument too many. What is missing is no mistake."""
    command: Any = COMMANDS
    context = command.context_class(command, info_name="proteus")
    while words and hasattr(command, "get_command") and not words[0].startswith("-"):
        below = command.get_command(context, words[0])
        if below is None:
            raise NoCommand(words[0])
        command, words = below, words[1:]
        context = command.context_class(command, info_name="proteus", parent=context)
    try:
        _, left, _ = command.make_parser(context).parse_args(list(words))
    except Exception as error:
        raise NoCommand(str(error)) from error
    if left:
        raise NoCommand(f"{left} too many")


@pytest.mark.parametrize("words", beginning("proteus"))
def test_commands_of_proteus_are_taken(words: list[str]) -> None:
    parse([word for word in words[1:] if word not in ("…", "...")])


@pytest.mark.parametrize(
    "line", ["size --gpus 1", "serve file.toml", "advise", "engines drop x", "engines use a b", "size --traffic"]
)
def test_a_command_that_is_not_known_is_seen(line: str) -> None:
    with pytest.raises(NoCommand):
        parse(line.split())


@pytest.mark.parametrize("words", beginning("make"))
def test_targets_of_make_exist_and_read_these_variables(words: list[str]) -> None:
    for word in words[1:]:
        variable, is_variable, _ = word.partition("=")
        assert f"$({variable})" in MAKEFILE if is_variable else word in TARGETS | {"…"}, word


@pytest.mark.parametrize("words", beginning("python", "python3", ".venv/bin/python"))
def test_modules_and_programs_of_python_exist(words: list[str]) -> None:
    if words[1] == "-m":
        found = importlib.util.find_spec(words[2])
        assert found is not None
        if words[2].startswith("export") and found.origin is not None:
            program = (
                Path(found.origin).with_name("__main__.py") if found.submodule_search_locations else Path(found.origin)
            )
            known = re.findall(r'add_argument\("(--[a-z-]+)"', program.read_text(encoding="utf-8"))
            assert {word for word in words if word.startswith("--")} <= set(known)
    elif words[1] != "-c":
        assert (ROOT / words[1]).is_file()


@pytest.mark.parametrize("words", [param for param in beginning("docker") if param.values[0][1] == "build"])
def test_images_have_these_targets_and_arguments(words: list[str]) -> None:
    assert (ROOT / words[words.index("-f") + 1]).is_file()
    if "--target" in words:
        assert re.search(rf" AS {words[words.index('--target') + 1]}$", DOCKERFILE, re.MULTILINE | re.IGNORECASE)
    for name in [
        word.partition("=")[0] for before, word in zip(words, words[1:], strict=False) if before == "--build-arg"
    ]:
        assert re.search(rf"^ARG {name}\b", DOCKERFILE, re.MULTILINE), name


@pytest.mark.parametrize("words", [param for param in beginning("helm") if "docker/helm/proteus" in param.values[0]])
def test_values_of_the_chart_exist(words: list[str]) -> None:
    for before, word in zip(words, words[1:], strict=False):
        if before in ("--set", "--set-file", "--set-string"):
            assert is_value(word.partition("=")[0]), word


def test_values_named_in_the_runbook_exist() -> None:
    named = {
        span for span in code(DOCS / "runbook.md") if re.fullmatch(r"(?:defaults|pools|model|image)(?:\.\w+)+", span)
    }
    assert len(named) > 4
    assert {name for name in named if not is_value(name)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_of_the_tree_exist(page: Path) -> None:
    for span in code(page):
        for word in PATHS.findall(span):
            path = word.rstrip(".")
            made = path.startswith(("docker/secrets", "docs/traffic.toml")) or (page.stem != "runbook" and "*" in path)
            assert made or list(ROOT.glob(path.rstrip("/"))) or list((ROOT / "src" / "proteus").glob(path)), word


QUOTED = re.compile(r"`(?:launch_failed|unavailable|deadline_exceeded|invalid_deployment): ([^`,;]+)")
SOURCES = "\n".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / "src").rglob("*.py")))


@pytest.mark.parametrize("text", sorted(set(QUOTED.findall((DOCS / "runbook.md").read_text(encoding="utf-8")))))
def test_messages_that_the_runbook_quotes_are_ours(text: str) -> None:
    assert text in SOURCES


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), link


def test_the_example_of_traffic_is_a_file_that_is_taken() -> None:
    from proteus.estimate_size import Traffic

    assert len(Traffic.load(DOCS / "traffic.toml").requests) == 3
