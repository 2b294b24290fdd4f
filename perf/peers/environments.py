"""Environments of the peers under var/peers/, and the checkpoint in their form; made when missing or out of date."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import venv
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = ROOT / "var" / "peers"
LOGS = HOME / "logs"
LONGEST_S = 1200  # for an installation or a conversion
NICE = 19
# What a child is told whatever it is: one thread, no network.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
VARIABLES = ONE_THREAD | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}

Progress = Callable[[str], None]


class PeerFailed(Exception):
    """A peer cannot be had here; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    name: str
    requirements: tuple[str, ...]
    without: tuple[str, ...] = ()  # packages that come along and cannot be imported beside the others
    disk_bytes: int  # of the whole environment

    @property
    def folder(self) -> Path:
        return HOME / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def make(self, progress: Progress) -> None:
        """Install what is wanted, unless that is what is there."""
        stamp, wanted = self.folder / "installed.json", json.dumps(asdict(self))
        if stamp.exists() and stamp.read_text() == wanted:
            return
        free = shutil.disk_usage(ROOT).free
        if free < 2 * self.disk_bytes:  # the downloads as well
            raise PeerFailed(f"{self.name} takes {self.disk_bytes / 1e9:.1f} GB of disk, {free / 1e9:.1f} GB are free")
        progress(f"installing {', '.join(self.requirements)} ({self.disk_bytes / 1e9:.1f} GB) into {self.folder}")
        shutil.rmtree(self.folder, ignore_errors=True)
        venv.create(self.folder, with_pip=True)
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check"]
        log = LOGS / f"{self.name}-install.log"
        run([*pip, "install", *self.requirements], log)
        if self.without:
            run([*pip, "uninstall", "--yes", *self.without], log)
        stamp.write_text(wanted)


def converted(
    environment: Environment, module: str, checkpoint: Path, progress: Progress, *, name: str | None = None
) -> Path:
    """`checkpoint` as `module` converts it, in the folder of models of that name, else of the environment's."""
    source = ROOT / f"{module.replace('.', '/')}.py"
    digest = hashlib.sha256(json.dumps(asdict(environment)).encode() + source.read_bytes())
    for file in sorted(checkpoint.iterdir()):
        digest.update(file.read_bytes())
    name = name or environment.name
    out, stamp = HOME / "models" / name, HOME / "models" / f"{name}.sha256"
    if out.exists() and stamp.exists() and stamp.read_text() == digest.hexdigest():
        return out
    progress(f"converting the checkpoint for {name}")
    stamp.unlink(missing_ok=True)
    shutil.rmtree(out, ignore_errors=True)
    command = [str(environment.python), "-m", module, str(checkpoint), "--convert", str(out)]
    run(command, LOGS / f"{name}-convert.log")
    stamp.write_text(digest.hexdigest())
    return out


def run(command: Sequence[str], log: Path) -> None:
    """At the lowest priority; PeerFailed with the last line of the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as out:
        try:
            ended = subprocess.run(
                ["nice", "-n", str(NICE), *command],
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, **VARIABLES},
                timeout=LONGEST_S,
            )
        except subprocess.TimeoutExpired as expired:
            raise PeerFailed(f"not done after {LONGEST_S} s; {log} tells how far it came") from expired
    if ended.returncode != 0:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise PeerFailed(f"{lines[-1] if lines else f'status {ended.returncode}'} ({log})")
