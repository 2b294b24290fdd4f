"""Prints, for pip, what the wheel of proteus needs and this Python lacks, at the versions of the lock file.

NVIDIA's images carry what TensorRT and TensorRT-LLM need, at versions that they need: numpy, torch, protobuf … Nothing
of it is changed. Where a version in the image is none that the wheel can do with, the build ends here and says so; who
knows better names the package in --replace. Runs before anything is installed: standard library and pip's own parts.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from email.parser import Parser
from importlib import metadata
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

# The image brings its own tritonserver, and the numpy that its Python backend is made for.
NEVER = frozenset({"nvidia-pytriton", "numpy", "setuptools"})
# In the lock file for the sake of those alone; a test computes them.
ONLY_FOR_THOSE = frozenset(
    {
        "importlib-metadata",
        "lazy-importer",
        "mypy-extensions",
        "pyzmq",
        "sh",
        "typing-inspect",
        "wrapt",
        "zipp",
    }
)
SAME_MODULE = {"onnxruntime": ("onnxruntime", "onnxruntime-gpu")}  # distributions that would overwrite each other


def requirements_of(wheel: Path) -> Iterator[Requirement]:
    """What the wheel needs to serve: no extras."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def locked(lock: Path) -> dict[str, str]:
    """Name and version of every line of a lock file."""
    lines = (line.partition("#")[0].strip() for line in lock.read_text().splitlines())
    pairs = (line.split("==") for line in lines if line)
    return {canonicalize_name(name): version for name, version in pairs}


def installed(name: str) -> str | None:
    """Its version here, None where it is not."""
    for distribution in SAME_MODULE.get(name, (name,)):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def missing(
    requirements: Iterable[Requirement],
    versions: Mapping[str, str],
    *,
    replace: frozenset[str] = frozenset(),
    here: Callable[[str], str | None] = installed,
) -> tuple[list[str], list[str]]:
    """Lines for pip, and what is wrong: packages that are here in a version that the wheel cannot do with."""
    wanted = {canonicalize_name(requirement.name): requirement for requirement in requirements}
    lines, wrong = [], []
    for name, version in versions.items():
        if name in NEVER | ONLY_FOR_THOSE:
            continue
        found = here(name)
        if found is None or name in replace:
            lines.append(f"{name}=={version}")
        elif name in wanted and not wanted[name].specifier.contains(found, prereleases=True):
            wrong.append(f"{name} {found} is in the image, the wheel needs {name}{wanted[name].specifier}")
    return lines, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replace", default="", help="names, comma between them")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("lock", type=Path)
    arguments = parser.parse_args()
    replace = frozenset(canonicalize_name(name.strip()) for name in arguments.replace.split(",") if name.strip())
    lines, wrong = missing(requirements_of(arguments.wheel), locked(arguments.lock), replace=replace)
    if wrong:
        names = ",".join(line.split()[0] for line in wrong)
        fix = f"build with --build-arg REPLACE={names}, and run proteus-check-image in what comes of it"
        sys.stderr.write("\n".join([*wrong, fix, ""]))
        return 1
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
