"""Where the files of containers lie, and their programs as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
BIN = Path(sys.prefix) / "bin"


def load_script(name: str) -> ModuleType:
    """docker/<name>.py, which is part of no package."""
    spec = importlib.util.spec_from_file_location(f"docker_{name}", DOCKER / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
