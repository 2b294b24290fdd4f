"""A picture may kill, hang or starve its worker: it fails alone, and the next one is answered."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from proteus.deployment import Deployment
from proteus.errors import InvalidPicture, InvalidRequest, MediaTooLarge, ProteusError, Unavailable
from proteus.preprocess import pool as pool_module
from proteus.preprocess.picture import Preprocess
from proteus.preprocess.pool import DecodePool, interpreter
from tests.preprocess.pictures import EVERY_FORMAT, encode, noise

DEMO = Path(__file__).parents[2] / "deployments" / "demo.toml"
ODD = [sys.executable, "-I", "-S", str(Path(__file__).parent / "odd_worker.py")]
GONE_WITHIN_S = 20


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def deployment(folder: Path, **decode: int) -> Deployment:
    """The demo's with one worker, and other numbers in [decode]; in a file of its own, as the workers read it."""
    text = DEMO.read_text().replace('"../', f'"{DEMO.parents[1]}/')
    before, heading, section = text.partition("[decode]")
    for key, value in {"workers": 1, **decode}.items():
        section = re.sub(rf"^{key} = [\d_]+", f"{key} = {value}", section, count=1, flags=re.MULTILINE)
    file = folder / "deployment.toml"
    file.write_text(before + heading + section)
    return Deployment.load(file)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DecodePool]:
    """Real workers that may take 64 MiB and a second or so."""
    made = DecodePool(deployment(tmp_path_factory.mktemp("real"), memory_bytes=64 << 20, timeout_ms=5_000))
    wait_until(lambda: made._idle.qsize() == 2)  # one and the spare
    yield made
    made.close()


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., DecodePool]]:
    """A pool of stand-ins."""
    pools: list[DecodePool] = []

    def make(*arguments: str, **decode: int) -> DecodePool:
        monkeypatch.setattr(pool_module, "command", lambda _: [*ODD, *arguments])
        pool = DecodePool(deployment(tmp_path, **{"timeout_ms": 20_000, **decode}))
        pools.append(pool)
        wait_until(lambda: pool._idle.qsize() == decode.get("workers", 1) + 1)
        return pool

    yield make
    for one in pools:
        one.close()


def pids(pool: DecodePool) -> set[int]:
    return {worker.process.pid for worker in pool._all()}


def is_gone(pid: int) -> bool:
    """Ended, and waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def refusal(pool: DecodePool, data: bytes) -> ProteusError:
    with pytest.raises(ProteusError) as caught:
        pool.submit(data).result()
    return caught.value


# --- with real workers ---


@pytest.mark.parametrize("name", EVERY_FORMAT)
def test_worker_makes_the_pixels_that_this_process_would_make(real: DecodePool, name: str) -> None:
    here, data = Preprocess.from_deployment(Deployment.load(DEMO)), encode(noise(200, 120), name)
    for target_px in (None, (100, 60)):
        assert np.array_equal(real.submit(data, target_px).result(), here(data, target_px))


def test_refusal_of_a_worker_is_that_of_the_decoder_and_keeps_the_worker(real: DecodePool) -> None:
    before, data = pids(real), encode(noise(64, 64), "JPEG")[:-200]
    assert str(refusal(real, data)).startswith("invalid_picture: the picture starts as jpeg but is truncated")
    assert isinstance(refusal(real, encode(noise(64, 1))), InvalidPicture)
    assert pids(real) == before


def test_more_bytes_than_allowed_never_reach_a_worker(real: DecodePool) -> None:
    assert "max_bytes = 10,485,760" in str(refusal(real, bytes(10_485_761)))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
@pytest.mark.parametrize("name", ["PNG", "TIFF"])
def test_picture_that_needs_more_memory_than_it_may_have_is_refused(real: DecodePool, name: str, mode: str) -> None:
    options = {"compression": "tiff_lzw"} if name == "TIFF" else {}
    error = refusal(real, encode(Image.new(mode, (4_900, 4_900)), name, **options))
    assert isinstance(error, MediaTooLarge)
    assert str(error) == (
        "media_too_large: the picture needs more memory to decode than it may have; "
        "limit: [decode] memory_bytes = 67,108,864; fix: send a smaller picture"
    )
    assert real.submit(encode(noise(64, 64))).result().shape == (3, 96, 96)


@pytest.mark.parametrize("name", ["JPEG", "WEBP", "GIF", "HEIF", "AVIF"])
def test_decoder_that_hides_its_want_of_memory_gives_an_error_of_ours(real: DecodePool, name: str) -> None:
    options = {"HEIF": {"enc_params": {"preset": "ultrafast"}}, "AVIF": {"speed": 10}, "WEBP": {"method": 0}}
    error = refusal(real, encode(Image.new("RGB", (4_000, 4_000)), name, **options.get(name, {})))
    assert isinstance(error, MediaTooLarge | InvalidPicture)
    assert real.submit(encode(noise(64, 64))).result().shape == (3, 96, 96)


def test_worker_that_rests_gives_back_what_a_large_picture_needed(real: DecodePool) -> None:
    wait_until(lambda: real._idle.qsize() == 2)
    before = {pid: resident_bytes(pid) for pid in pids(real)}
    for _ in range(4):
        real.submit(encode(Image.new("RGB", (1_800, 1_800)), "JPEG")).result()
    wait_until(lambda: all(resident_bytes(pid) < before[pid] + 6_000_000 for pid in pids(real)))


def test_worker_that_stands_still_is_ended_and_the_next_picture_is_answered(real: DecodePool) -> None:
    stopped = pids(real)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    error = refusal(real, encode(noise(64, 64)))
    assert "takes too long to decode; limit: [decode] timeout_ms = 5,000" in str(error)
    for pid in stopped & pids(real):
        os.kill(pid, signal.SIGCONT)
    assert real.submit(encode(noise(64, 64))).result().shape == (3, 96, 96)
    assert any(is_gone(pid) for pid in stopped)


def test_idle_worker_that_died_is_replaced_before_anyone_notices(real: DecodePool) -> None:
    wait_until(lambda: real._idle.qsize() == 2)
    for _ in range(2):
        victim = real._idle.queue[-1]
        victim.process.kill()
        wait_until(lambda victim=victim: is_gone(victim.process.pid))
        assert real.submit(encode(noise(64, 64))).result().shape == (3, 96, 96)


def test_worker_can_write_no_file_and_open_none(real: DecodePool) -> None:
    wait_until(lambda: real._idle.qsize() == 2)
    pid = next(iter(pids(real)))
    limits = {line[:26].strip(): line[26:].split()[0] for line in Path(f"/proc/{pid}/limits").read_text().splitlines()}
    assert (limits["Max core file size"], limits["Max file size"]) == ("0", "0")
    assert int(limits["Max open files"]) < 16
    own_bytes = int(limits["Max address space"]) - (64 << 20)
    assert 0 < own_bytes < 1 << 30
    assert len(os.listdir(f"/proc/{pid}/fd")) <= 6


def test_size_that_cannot_be_made_is_refused(real: DecodePool) -> None:
    data = encode(noise(64, 64))
    with pytest.raises(InvalidRequest, match=r"target_px = \[0, 5\]"):
        real.submit(data, (0, 5)).result()
    with pytest.raises(InvalidPicture, match="64x64 px, smaller than the 65x64 px asked for"):
        real.submit(data, (65, 64)).result()


# --- with workers that misbehave ---


@pytest.mark.parametrize("way", [b"K", b"S", b"x"], ids=["killed", "segmentation fault", "exit"])
def test_death_in_mid_decode_costs_one_picture(odd: Callable[..., DecodePool], way: bytes) -> None:
    pool = odd()
    for _ in range(3):
        error = refusal(pool, way)
        assert isinstance(error, InvalidPicture)
        assert "the process that decoded the picture died; limit: [decode] memory_bytes" in str(error)
        assert pool.submit(b"good").result().shape == (3, 96, 96)


def test_decoder_that_hangs_is_ended_by_the_clock(odd: Callable[..., DecodePool]) -> None:
    pool = odd(timeout_ms=500)
    before = pids(pool)
    assert "takes too long to decode; limit: [decode] timeout_ms = 500" in str(refusal(pool, b"h"))
    assert pool.submit(b"good").result().shape == (3, 96, 96)
    assert sum(is_gone(pid) for pid in before) == 1


def test_end_by_the_kernels_clock_reads_like_the_pools(odd: Callable[..., DecodePool]) -> None:
    assert "takes too long to decode" in str(refusal(odd(), b"A"))


@pytest.mark.parametrize("lie", list("slvejucn"))
def test_reply_that_is_a_lie_ends_the_worker_and_is_not_passed_on(odd: Callable[..., DecodePool], lie: str) -> None:
    pool = odd()
    before = pids(pool)
    assert "the process that decoded the picture died" in str(refusal(pool, lie.encode()))
    assert pool.submit(b"good").result().shape == (3, 96, 96)
    assert sum(is_gone(pid) for pid in before) == 1


def test_many_threads_and_deaths_leave_as_many_workers_as_before(odd: Callable[..., DecodePool]) -> None:
    pool = odd(workers=2)

    def ask(index: int) -> bool:
        if index % 5 == 0:
            return isinstance(refusal(pool, b"K"), InvalidPicture)
        return pool.submit(b"good").result().shape == (3, 96, 96)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(60)))
    wait_until(lambda: pool._idle.qsize() == 3)
    assert len(pids(pool)) == 3


def test_closed_pool_leaves_no_process(odd: Callable[..., DecodePool]) -> None:
    pool = odd()
    waiting, started = pool.submit(b"h"), pids(pool)
    pool.close()
    pool.close()
    assert all(is_gone(pid) for pid in started)
    assert waiting.cancelled() or isinstance(waiting.exception(), Unavailable)


def test_picture_whose_pool_was_closed_is_not_blamed(odd: Callable[..., DecodePool]) -> None:
    pool = odd()
    waiting = pool.submit(b"h")
    wait_until(lambda: pool._idle.qsize() == 1)
    pool.close()
    assert isinstance(waiting.exception(), Unavailable)


def test_worker_that_does_not_start_is_told_at_once(odd: Callable[..., DecodePool]) -> None:
    with pytest.raises(Unavailable, match="did not start"):
        odd("no start")


def test_workers_end_with_a_process_that_was_killed() -> None:
    program = (
        "import sys, time; from pathlib import Path; from proteus.deployment import Deployment\n"
        "from proteus.preprocess.pool import DecodePool\n"
        f"pool = DecodePool(Deployment.load(Path({str(DEMO)!r})))\n"
        "while len(pool._all()) < 2: time.sleep(0.01)\n"
        "print(*(worker.process.pid for worker in pool._all()), flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        workers = [int(pid) for pid in owner.stdout.readline().split()] if owner.stdout else []
        owner.kill()
    assert len(workers) == 2  # one and the spare
    wait_until(lambda: all(is_gone(pid) for pid in workers))


def test_process_of_the_pool_loads_no_decoder() -> None:
    program = (
        "import sys, proteus.preprocess.pool\nprint([name for name in sys.modules if name in ('PIL', 'pillow_heif')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_python_is_found_when_another_program_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for given in ("/opt/triton_python_backend_stub", "", None):
        monkeypatch.setattr(sys, "executable", given)
        assert Path(interpreter()).name.startswith("python3")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unavailable, match="no python3"):
        interpreter()
