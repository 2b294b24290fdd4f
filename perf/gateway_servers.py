"""What is measured, each a process of its own as a user would start it: `proteus serve`, `proteus gateway`."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "deployments" / "demo.toml"
START_S, STOP_S, POLL_S = 180.0, 60.0, 0.05
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PORTS = ("http", "grpc", "metrics", "health")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


class NotStarted(Exception):
    """With what it said."""


class Started:
    """A command that says `name  address` line by line and then how to stop it."""

    def __init__(self, command: Sequence[str], log: Path, last: str = "stop with") -> None:
        self._command, self._log, self._last = command, log, last
        self.addresses: Mapping[str, str] = {}
        self.begin()

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self) -> None:
        """Again, where it has ended."""
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, *self._command], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env=ENVIRONMENT
            )
        try:
            self._wait()
        except BaseException:
            self.end()
            raise

    def end(self, within_s: float = STOP_S) -> None:
        """As SIGTERM does it; returns when it has ended."""
        self._process.terminate()
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait(self) -> None:
        end_s = time.monotonic() + START_S
        while not re.search(rf"^{self._last}", self._log.read_text(), re.MULTILINE):
            if self._process.poll() is not None or time.monotonic() > end_s:
                raise NotStarted(f"{' '.join(self._command)}:\n{self._log.read_text()}")
            time.sleep(POLL_S)
        self.addresses = dict(re.findall(r"^(\w+) +(?:http://)?(\S+)$", self._log.read_text(), re.MULTILINE))


def serve(folder: Path, name: str, *, drain_s: float = 0.0, ports: Mapping[str, int] | None = None) -> Started:
    """A server of the demo. Free ports, unless it is to come back where it was."""
    given = ports or dict.fromkeys(PORTS, 0)
    options = [word for kind, port in given.items() for word in (f"--{kind}-port", str(port))]
    log = ["--log", str(folder / f"{name}.server.log")]
    return Started(["-m", "proteus.cli", "serve", *options, *log, "--drain-s", str(drain_s)], folder / f"{name}.log")


def free_ports() -> dict[str, int]:
    """For a server that is to come back where it was."""
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in PORTS]
        return {name: one.getsockname()[1] for name, one in zip(PORTS, taken, strict=True)}


def gateway(folder: Path, *servers: Started, deployment: Path | None = None) -> Started:
    """In front of them, its metering log in the folder."""
    file = deployment or changed(folder / "gateway.toml")
    given = [word for server in servers for word in ("--server", _place(server))]
    command = ["-m", "proteus.cli", "gateway", "--deployment", str(file), "--port", "0", "--metrics-port", "0"]
    return Started([*command, *given], folder / f"{file.stem}.log")


def changed(file: Path, **values: str) -> Path:
    """The demo's deployment file in another place, with keys of one line given other values."""
    text = DEMO.read_text(encoding="utf-8")
    text = text.replace('"../', f'"{ROOT}/').replace(f"{ROOT}/var/metering.jsonl", str(file.with_suffix(".jsonl")))
    for name, value in values.items():
        text, count = re.subn(rf"^{name} = \S+", f"{name} = {value}", text, flags=re.MULTILINE)
        if not count:
            raise ValueError(f"{DEMO} has no key {name}")
    file.write_text(text, encoding="utf-8")
    return file


def _place(server: Started) -> str:
    return ",".join(server.addresses[kind] for kind in ("grpc", "health") if kind in server.addresses)


def figures(front: Started, name: str) -> dict[str, float]:
    """Of a gateway: what it counts by that name, by labels."""
    with urllib.request.urlopen(f"http://{front.addresses['metrics']}") as answer:
        text = answer.read().decode()
    found = re.findall(rf"^proteus_gateway_{name}(\{{.*\}})? (\S+)$", text, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


def cpu_s(pid: int) -> float:
    """That a process has used, all of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def waited_s(pid: int) -> float:
    """That its first thread, which is that of its event loop, could have run and had no core."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9


def rss_bytes(pid: int) -> int:
    return int(re.findall(r"^VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[0]) * 1024


def tritonserver_of(pid: int) -> int:
    """The process of Triton itself below a `proteus serve`. Raises LookupError."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _parent(_parent(int(entry.name))) == pid and _name(entry) == "tritonserver":
            return int(entry.name)
    raise LookupError(f"process {pid} has no tritonserver")


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _name(entry: Path) -> str:
    try:
        return (entry / "comm").read_text().strip()
    except OSError:
        return ""
