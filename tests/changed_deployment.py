"""The demo's deployment file with some keys changed, read as if it were the file itself."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proteus.deployment import Deployment

DEMO = Path(__file__).parents[1] / "deployments" / "demo.toml"
ABSENT = object()  # the key, or the table, is left out


def changed(changes: Mapping[str, Any]) -> Deployment:
    """`changes` by dotted key: {"gpu.devices": [0, 1], "gpu.llm.device": 1}."""
    tables = tomllib.loads(DEMO.read_text(encoding="utf-8"))
    for key, value in changes.items():
        *path, last = key.split(".")
        table = tables
        for name in path:
            table = table.setdefault(name, {})
        if value is ABSENT:
            del table[last]
        else:
            table[last] = value
    deployment = Deployment.model_validate(tables)
    deployment._file = DEMO.resolve()
    return deployment
