"""What each of several workers is given at a time: a whole file, or the files of a room that share a slow export."""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadFileScheduling

# Files and folders whose fixtures trace a checkpoint for up to a minute: once where one worker has all of them.
TOGETHER = {
    "tests/export/test_diffusion.py": "drawn",
    "tests/generation/test_pipelines_oracle.py": "drawn",
    "tests/generation": "tests/generation",
    "tests/language": "tests/language",
}
# Minutes and many seconds each, though few tests: begun last, one worker would be left alone with them at the end.
LONGEST = (
    "drawn",
    "tests/export/test_torch_program.py",
    "tests/oracle/test_families.py",
    "tests/generation",
    "tests/language",
    "tests/export/test_diffusion_variants.py",
    "tests/export/test_diffusion_repository.py",
    "tests/export/test_text_models.py",
    "tests/export/test_graphs.py",
    "tests/export/test_precision.py",
    "tests/train/test_training.py",
    "tests/train/test_drawing.py",
)


def scope_of(nodeid: str) -> str:
    """What goes to one worker with the test."""
    file = nodeid.partition("::")[0]
    return TOGETHER.get(file) or TOGETHER.get(file.rpartition("/")[0], file)


def place_of(item: pytest.Item) -> int:
    """To sort by: the longest first, all others as they are collected."""
    scope = scope_of(item.nodeid)
    return LONGEST.index(scope) if scope in LONGEST else len(LONGEST)


class Scheduling(LoadFileScheduling):
    """`--dist loadfile`, with the scopes of this module."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)
