"""The real perf_analyzer, from the last client wheel whose copy runs on glibc 2.36."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from proteus.launcher.failure import LaunchFailed
from proteus.launcher.layout import Wheel

REQUIREMENT = "tritonclient==2.51.0"
# Name it asks the loader for -> the copy that comes with the server's wheel.
LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Analyzer:
    """An installed perf_analyzer."""

    program: Path
    libraries: Path

    @staticmethod
    def install(folder: Path) -> Analyzer:
        """Unpacks it into `folder`, apart from the environment, whose own client library is newer; once."""
        analyzer = Analyzer(program=folder / "client" / "bin" / "perf_analyzer", libraries=folder / "libraries")
        if not analyzer.program.is_file():
            options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--no-compile"]
            target = ["--target", str(folder / "client")]
            subprocess.run([sys.executable, "-m", "pip", "install", *options, *target, REQUIREMENT], check=True)
        analyzer.libraries.mkdir(parents=True, exist_ok=True)
        for name, pattern in LIBRARIES.items():
            link = analyzer.libraries / name
            link.unlink(missing_ok=True)
            link.symlink_to(_only(Wheel.find().libraries, pattern))
        return analyzer

    def run(self, model: str, url: str, input_data: Path, *options: str) -> None:
        """Measures `model` over gRPC and lets perf_analyzer print its table; CalledProcessError when it fails."""
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self.libraries)}
        command = [str(self.program), "-m", model, "-u", url, "-i", "grpc", "--input-data", str(input_data), *options]
        subprocess.run(command, env=environment, check=True)


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if not found:
        raise LaunchFailed(f"no {pattern} in {folder.name}, which perf_analyzer needs")
    return found[0]
