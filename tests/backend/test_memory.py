"""Memory of a server's processes, from a /proc that the test writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from proteus.backend import memory

SERVER, CHAT, PREPROCESS, SECOND, WORKER, OTHER = 10, 11, 12, 13, 14, 15
STUB = "backends/python/triton_python_backend_stub\0model.py\0{instance}\0DEFAULT\0"


def process(proc: Path, pid: int, parent: int, arguments: str, pss_kib: int | None, resident: int = 0) -> None:
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "stat").write_text(f"{pid} (a name) with) brackets) S {parent} 1 1\n")
    (folder / "cmdline").write_text(arguments)
    (folder / "statm").write_text(f"99 {resident} 1\n")
    if pss_kib is not None:
        (folder / "smaps_rollup").write_text(f"0-1 ---p 0\nRss: {pss_kib + 5} kB\nPss:     {pss_kib} kB\n")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory, "PROC", tmp_path)
    process(tmp_path, SERVER, 1, "tritonserver\0", 100)
    process(tmp_path, CHAT, SERVER, STUB.format(instance="chat_0_0"), 20)
    process(tmp_path, PREPROCESS, SERVER, STUB.format(instance="image_preprocess_0_0"), 30)
    process(tmp_path, SECOND, SERVER, STUB.format(instance="image_preprocess_0_1"), 7)
    process(tmp_path, WORKER, PREPROCESS, "python\0-m\0proteus.preprocess.worker\0", 50)
    process(tmp_path, OTHER, SERVER, "sleep\0", 1000)
    (tmp_path / "self").mkdir()
    return tmp_path


def test_each_model_has_its_stubs_and_what_they_started(proc: Path) -> None:
    told = memory.read_memory(SERVER).values("proteus_stub_memory_bytes")
    assert told == {"tritonserver": 100 * 1024, "chat": 20 * 1024, "image_preprocess": (30 + 7 + 50) * 1024}


def test_a_process_that_hides_its_share_counts_what_is_resident(proc: Path) -> None:
    (proc / str(WORKER) / "smaps_rollup").unlink()
    (proc / str(WORKER) / "statm").write_text("99 3 1\n")
    page = memory.os.sysconf("SC_PAGE_SIZE")
    assert memory.read_memory(SERVER).by_model["image_preprocess"] == (30 + 7) * 1024 + 3 * page


def test_a_process_that_ends_meanwhile_counts_nothing(proc: Path) -> None:
    for name in ("statm", "smaps_rollup"):
        (proc / str(CHAT) / name).unlink()
    assert memory.read_memory(SERVER).by_model["chat"] == 0


def test_an_instance_with_a_name_of_its_own_is_its_model() -> None:
    assert memory.INSTANCE.fullmatch("plain") is None
    found = memory.INSTANCE.fullmatch("image_preprocess_0_11")
    assert found is not None and found["model"] == "image_preprocess"
