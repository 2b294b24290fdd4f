from __future__ import annotations

import os
import subprocess
import sys

import pytest

from proteus.launcher.processes import is_alive, model_of, stubs_of

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
