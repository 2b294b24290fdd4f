from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from proteus.launcher.processes import Lives, is_alive, model_of, stubs_of, tell_of_end

STUB = "/any/python/triton_python_backend_stub"


@pytest.mark.parametrize(
    ("instance", "model"), [("add_one_0_0", "add_one"), ("llm_2_11", "llm"), ("v2_encoder_1_0", "v2_encoder")]
)
def test_model_of_a_stub_is_its_instance_without_the_numbers(instance: str, model: str) -> None:
    assert model_of([STUB, "/repository/x/1/model.py", "region", "336", instance, "DEFAULT"]) == model


@pytest.mark.parametrize("command", [[], ["python"], ["/bin/sleep", "add_one_0_0", "DEFAULT"]])
def test_other_processes_are_no_stubs(command: list[str]) -> None:
    assert model_of(command) is None


def test_stubs_are_found_among_the_children() -> None:
    program = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [STUB, "-c", program, "toy_0_0", "DEFAULT"],
        executable=sys.executable,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert stubs_of(os.getpid()) == {child.pid: "toy"}
        assert stubs_of(child.pid) == {}


def test_zombie_is_not_alive() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(child.pid)
    assert not is_alive(child.pid)
    assert is_alive(os.getpid())


def test_lives_says_what_is_alive_says_and_leaves_no_file_open() -> None:
    lives, files = Lives(), os.listdir("/proc/self/fd")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert lives(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not lives(child.pid), "a zombie"
    assert not lives(child.pid)
    assert lives(os.getpid())
    lives.forget()
    assert (lives(child.pid), lives(os.getpid())) == (False, True)
    lives.forget()
    assert len(os.listdir("/proc/self/fd")) <= len(files)


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)]
    yield started
    for child in started:
        child.kill()
        child.communicate()


def _no_pidfd(_pid: int) -> int:
    raise OSError(errno.ENOSYS, "Function not implemented")


@pytest.mark.parametrize("unknown_to", ["", "the kernel", "Python, as it was built"])
def test_the_first_end_is_told(
    children: list[subprocess.Popen[bytes]], unknown_to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if unknown_to == "the kernel":
        monkeypatch.setattr(os, "pidfd_open", _no_pidfd)
    elif unknown_to:
        monkeypatch.delattr(os, "pidfd_open")
    files, told = len(os.listdir("/proc/self/fd")), threading.Event()
    tell_of_end([child.pid for child in children], told.set)
    assert not told.wait(0.3)
    children[1].kill()
    assert told.wait(10)
    assert len(os.listdir("/proc/self/fd")) <= files


def test_without_a_thread_the_end_is_not_told_and_nothing_else_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    tell_of_end([os.getpid()], lambda: None)


def test_an_end_before_the_question_is_told_as_well(children: list[subprocess.Popen[bytes]]) -> None:
    told = threading.Event()
    children[1].kill()
    children[1].wait()
    tell_of_end([child.pid for child in children], told.set)
    assert told.wait(10)
