"""Models that can wait run at a lower priority than their server, whatever that has."""

from __future__ import annotations

import subprocess
import sys

import pytest

TOLD = """
import os, threading
os.setpriority(os.PRIO_PROCESS, 0, 15)
from proteus.backend.startup import be_nicer
ended = threading.Event()
threads = [threading.Thread(target=ended.wait) for _ in range(2)]
threads[0].start()
be_nicer({by})
threads[1].start()
print({{os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir("/proc/self/task")}})
ended.set()
"""


@pytest.mark.parametrize(("by", "nice"), [(3, 18), (0, 15), (10, 19)])
def test_every_thread_is_nicer_than_the_server_by_that_much(by: int, nice: int) -> None:
    """A server that was started with a low priority, here 15, has no right to raise one."""
    command = [sys.executable, "-c", TOLD.format(by=by)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert told.strip() == str({nice})
