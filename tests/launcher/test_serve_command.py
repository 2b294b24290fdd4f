"""What `proteus serve` makes of its options."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from proteus import launcher
from proteus.cli.commands import app

ROOT = Path(__file__).parents[2]


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


def test_a_deployment_file_without_a_gateway_is_told_in_a_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "deployments" / "demo.toml").read_text(encoding="utf-8").replace('"../', f'"{ROOT}/')
    file = tmp_path / "deployment.toml"
    file.write_text(re.sub(r"(?ms)^\[gateway\]$.*?(?=^# Pictures out)", "", text), encoding="utf-8")
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        status = launcher.serve(file, http_port=None, grpc_port=None, metrics_port=None, gateway_port=0)
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])
    assert status == 1
    assert "has no [gateway], which --gateway-port needs" in capfd.readouterr().err
