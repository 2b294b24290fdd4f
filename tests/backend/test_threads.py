"""Threads that are used again."""

from __future__ import annotations

import threading
import weakref
from time import monotonic, sleep

from proteus.backend.threads import MAX_IDLE, Threads


class Held:
    pass


def waited_for(threads: Threads, num_idle: int) -> None:
    end_s = monotonic() + 10
    while threads._num_idle != num_idle:
        assert monotonic() < end_s
        sleep(0.001)


def test_one_after_the_other_needs_one_thread() -> None:
    threads, idents = Threads("test"), set()
    for _ in range(20):
        threads.begin(lambda: idents.add(threading.get_ident()))
        waited_for(threads, 1)
    assert len(idents) == 1


def test_who_waits_for_ever_keeps_nobody_waiting() -> None:
    threads, done = Threads("test"), threading.Semaphore(0)
    ever = threading.Event()
    for _ in range(3):
        threads.begin(ever.wait)  # type: ignore[arg-type]
        threads.begin(lambda: done.release())
        assert done.acquire(timeout=10)
    ever.set()


def test_those_of_a_burst_end_but_for_some() -> None:
    threads, go_on = Threads("test of a burst"), threading.Event()
    for _ in range(3 * MAX_IDLE):
        threads.begin(go_on.wait)  # type: ignore[arg-type]
    go_on.set()
    waited_for(threads, MAX_IDLE)
    end_s = monotonic() + 10
    while sum(thread.name == "test of a burst" for thread in threading.enumerate()) > MAX_IDLE:
        assert monotonic() < end_s
        sleep(0.001)


def test_nothing_of_a_work_is_kept() -> None:
    threads, held = Threads("test"), Held()
    gone = weakref.ref(held)
    threads.begin(lambda held=held: None)  # type: ignore[misc]
    del held
    waited_for(threads, 1)
    assert gone() is None
