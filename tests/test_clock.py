from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from proteus import clock


def test_processes_of_one_machine_know_its_clock_by_one_name_and_read_the_same_time() -> None:
    begun_ns = clock.now_ns()
    program = "from proteus import clock; print(clock.clock_name(), clock.now_ns())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    name, read_ns = done.stdout.split()
    assert name == clock.clock_name()
    assert begun_ns < int(read_ns) < clock.now_ns()


def test_another_start_of_the_machine_has_another_name_which_does_not_tell_its_id(tmp_path: Path) -> None:
    boots = [tmp_path / "one", tmp_path / "other"]
    for number, boot in enumerate(boots):
        boot.write_text(f"5f0c6b0e-0000-4000-8000-00000000000{number}\n")
    names = [clock.clock_name(boot) for boot in boots]
    assert len(set(names)) == 2
    assert all(name is not None and re.fullmatch("[0-9a-f]{16}", name) and name[:8] != "5f0c6b0e" for name in names)


def test_system_that_names_no_start_has_no_name_for_its_clock(tmp_path: Path) -> None:
    assert clock.clock_name(tmp_path / "none") is None
