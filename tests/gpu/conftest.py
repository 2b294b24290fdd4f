"""Tests of what runs on an NVIDIA GPU alone: there is nothing to collect here where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from proteus.cuda_driver import compute_capability

HERE = Path(__file__).parent
collect_ignore_glob = ["test_*.py"] if compute_capability() is None else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)
