"""docs/kubernetes.md: its helm commands render, and the values that it names exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.helm_chart import CHART, DEPLOYMENT, ROOT, VALUES, helm, is_value

PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
REUSED = "--reset-then-reuse-values"
INSTALLED = ("--set-file", "deployment=FILE", "--set", "model.claim=models,encoderCache.mode=internal")


def commands() -> Iterator[list[str]]:
    """Every `helm install` or `helm upgrade` of our chart, in words."""
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["helm"] and "docker/helm/proteus" in words:
                yield words


def rendered(words: list[str], file: Path) -> str:
    """What `helm template` makes of it; REUSED is a release that was installed with the values of the first command."""
    _, _, release, _, *given = words
    before = list(INSTALLED) if REUSED in given else []
    given = [word for word in before + given if word != REUSED]
    given = [re.sub(r"^deployment=.*", f"deployment={file}", word) for word in given]
    return helm("template", release, str(CHART), *given)


def test_its_commands_render(tmp_path: Path) -> None:
    file = tmp_path / "deployment.toml"
    file.write_text(DEPLOYMENT, encoding="utf-8")
    found = list(commands())
    assert len(found) >= 5
    for words in found:
        assert "kind: Deployment" in rendered(words, file), words


NAMED = sorted(
    {
        name
        for name in re.findall(r"`(?:--set )?([a-z]+[A-Za-z]*(?:\.[a-zA-Z<>]+)+)(?:=[^`]*)?`", PAGE)
        if name.split(".")[0] in VALUES and not name.endswith((".md", ".yaml"))
    }
)


@pytest.mark.parametrize("name", NAMED)
def test_values_that_it_names_exist(name: str) -> None:
    assert is_value(name) or is_value(f"defaults.{name}")


def test_it_names_the_values_that_matter() -> None:
    assert len(NAMED) > 20
