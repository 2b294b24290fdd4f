"""A launcher that cannot start its server again gives up and says so: whoever started it has to learn of it."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from proteus.launcher import LaunchFailed, RestartPolicy, Server

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Its process has died."""
    server = Server.for_repository(tmp_path, restart_policy=RestartPolicy(max_restarts=2, delay_step_s=0.0))
    dead = SimpleNamespace(pid=2**30, kill=lambda: None, stubs=dict)
    monkeypatch.setattr(server, "_process", dead)
    monkeypatch.setattr(server, "_folder", tmp_path)
    return server


@pytest.mark.parametrize("failure", [FULL, LaunchFailed("no")])
def test_a_server_that_cannot_be_started_is_given_up(
    server: Server, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise failure

    monkeypatch.setattr(server, "_start_process", fail)
    server._keep_running()
    assert server.restarts == 2
    assert "given up" in (server.why_not_alive() or "")
    with pytest.raises(LaunchFailed, match=r"No space left|no"):
        server.wait()


def test_a_log_that_takes_no_more_keeps_nobody_from_starting_the_server(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Path("/dev/full")
    monkeypatch.setattr(server, "_log_given", full)
    monkeypatch.setattr(Path, "is_file", lambda self: True)
    monkeypatch.setattr(server, "_start_process", server._stopping.set)
    server._keep_running()
    assert (server.restarts, server.why_not_alive()) == (1, None)
