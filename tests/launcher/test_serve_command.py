"""What `proteus serve` makes of its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from proteus import launcher
from proteus.cli.commands import app


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the launcher was called with."""
    options: dict[str, Any] = {}

    def serve(deployment: Path, **more: Any) -> int:
        options.update(more)
        return 0

    monkeypatch.setattr(launcher, "serve", serve)
    monkeypatch.delenv("TRITONSERVER_FOLDER", raising=False)
    return options


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ([], {}, {"pool": "all", "hardware": "cpu", "host": "127.0.0.1", "tritonserver": None, "http_port": 8000}),
        (["--pool", "draw", "--hardware", "gpu"], {}, {"pool": "draw", "hardware": "gpu"}),
        (["--host", "0.0.0.0", "--http-port", "0"], {}, {"host": "0.0.0.0", "http_port": None}),
        ([], {}, {"gateway_port": None, "gateway_host": "127.0.0.1", "drain_s": 0.0}),
        (["--gateway-port", "0", "--drain-s", "2.5"], {}, {"gateway_port": 0, "drain_s": 2.5}),
        ([], {"TRITONSERVER_FOLDER": "."}, {"tritonserver": Path(".")}),
        (["--tritonserver", "src"], {"TRITONSERVER_FOLDER": "."}, {"tritonserver": Path("src")}),
    ],
)
def test_options_reach_the_launcher(
    given: dict[str, Any], arguments: list[str], environment: dict[str, str], expected: dict[str, Any]
) -> None:
    result = CliRunner().invoke(app, ["serve", *arguments], env=environment)
    assert (result.exit_code, result.stderr) == (0, "")
    assert given.items() >= expected.items()


@pytest.mark.parametrize("wrong", [["--pool", "vision"], ["--hardware", "tpu"], ["--tritonserver", "/no/such/folder"]])
def test_what_cannot_be_is_refused_before_anything_starts(given: dict[str, Any], wrong: list[str]) -> None:
    assert CliRunner().invoke(app, ["serve", *wrong]).exit_code == 2
    assert given == {}
