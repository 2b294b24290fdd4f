from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from proteus.launcher import LaunchFailed, surroundings


def volume(monkeypatch: pytest.MonkeyPatch, *, mebibytes: int = 1, flags: int = 0) -> None:
    told = SimpleNamespace(f_frsize=4096, f_blocks=mebibytes * 256, f_flag=flags)
    monkeypatch.setattr(surroundings.os, "statvfs", lambda folder: told)


@pytest.mark.parametrize(("mebibytes", "notes"), [(64, 1), (255, 1), (256, 0), (2048, 0)])
def test_scarce_shared_memory_is_told(monkeypatch: pytest.MonkeyPatch, mebibytes: int, notes: int) -> None:
    volume(monkeypatch, mebibytes=mebibytes)
    told = surroundings.shared_memory_notes()
    assert len(told) == notes
    assert all(f"has {mebibytes} MiB, 256 or more are wanted (docker: --shm-size)" in note for note in told)


def test_a_folder_that_nothing_may_run_from_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    volume(monkeypatch, flags=os.ST_NOEXEC)
    with pytest.raises(LaunchFailed, match=r"/tmp is mounted noexec.*--tmpfs /tmp:exec.*TMPDIR"):
        surroundings.refuse_noexec(Path("/tmp/proteus-1"))


def test_any_other_folder_will_do(tmp_path: Path) -> None:
    surroundings.refuse_noexec(tmp_path)
