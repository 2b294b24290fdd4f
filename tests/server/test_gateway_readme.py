"""What README and the gateway's page tell to type is typed, word for word but for the port, and answered."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from proteus.launcher import Server
from tests.server.conftest import ROOT
from tests.server.gateway_process import gateway_of

GATEWAY, OPERATIONS = "127.0.0.1:8090", "127.0.0.1:8091"
BLOCK = re.compile(r"^```(sh|console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"^curl .*$", re.MULTILINE)


def blocks(page: str) -> list[tuple[str, str]]:
    """(kind, words) of those that ask the gateway."""
    found = [(match[1], match[2]) for match in BLOCK.finditer((ROOT / page).read_text(encoding="utf-8"))]
    return [(kind, words) for kind, words in found if GATEWAY in words and ("curl " in words or kind == "python")]


TOLD = [(page, *block) for page in ("README.md", "docs/gateway.md") for block in blocks(page)]
LINES = [line for _, words in blocks("docs/operating.md") for line in LINE.findall(words)]


@pytest.fixture(scope="module")
def addresses(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    with gateway_of(server, tmp_path_factory.mktemp("gateway")) as started:
        yield {GATEWAY: started.addresses["gateway"], OPERATIONS: started.addresses["metrics"].partition("/")[0]}


def typed(words: str, addresses: Mapping[str, str], folder: Path, *program: str) -> str:
    """What it prints, in a folder in which `client` is that of the project."""
    (folder / "client").symlink_to(ROOT / "client")
    for place, there in addresses.items():
        words = words.replace(place, there)
    done = subprocess.run([*program, words], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("kind", "words"), [one[1:] for one in TOLD], ids=[f"{one[0]} {one[1]}" for one in TOLD])
def test_what_a_page_tells_to_type_is_answered(
    addresses: Mapping[str, str], tmp_path: Path, kind: str, words: str
) -> None:
    if kind == "python":
        assert typed(words, addresses, tmp_path, sys.executable, "-c")
        return
    printed = typed(re.sub(r"^\$ ", "", words, flags=re.MULTILINE), addresses, tmp_path, "bash", "-c")
    if printed:
        assert "error" not in json.loads(printed)
    for file in tmp_path.glob("*.png"):
        assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("line", LINES)
def test_what_operating_tells_to_ask_is_told(addresses: Mapping[str, str], tmp_path: Path, line: str) -> None:
    assert typed(line.replace("curl -s ", "curl -s --fail "), addresses, tmp_path, "bash", "-c")


def test_the_pages_have_such_lines() -> None:
    found = {f"{page} {kind}" for page, kind, _ in TOLD}
    assert {"README.md sh", "README.md python", "docs/gateway.md sh", "docs/gateway.md console"} <= found
    assert len(LINES) >= 3
