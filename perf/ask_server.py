"""The demo's server with caps of our own on its tiers, and what its processes have cost so far."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from proteus import configs
from proteus.deployment import Deployment

PROC = Path("/proc")


def reading_deployment(demo: Path, folder: Path, max_pixels: Mapping[str, int]) -> Deployment:
    """A deployment in `folder` as the demo's, with other caps on the tiers named. It reads pictures and draws none."""
    deployment = Deployment.load(demo)
    text = re.sub(r"^draw_checkpoint = .*\n", "", demo.read_text(encoding="utf-8"), flags=re.MULTILINE)
    text = _replaced(text, r'(^checkpoint = )"[^"]*"', f'"{deployment.checkpoint_path}"')
    text = _replaced(text, r'(^repository = )"[^"]*"', '"model_repository"')
    for tier, pixels in max_pixels.items():
        text = _replaced(text, rf"(^\[tiers\.{tier}\][^\[]*?^max_pixels = )[\d_]+", str(pixels))
    shutil.copytree(deployment.repository_path, folder / "model_repository")
    file = folder / "deployment.toml"
    file.write_text(text, encoding="utf-8")
    capped = Deployment.load(file)
    configs.write(capped)
    return capped


def _replaced(text: str, pattern: str, value: str) -> str:
    found, count = re.subn(pattern, lambda match: match[1] + value, text, count=1, flags=re.MULTILINE)
    if not count:
        raise ValueError(f"the deployment file has no line like {pattern}")
    return found


def cpu_s(server_pid: int) -> float:
    """CPU time of a process and of all below it, those that ended included, in steps of a clock tick."""
    stats = {int(entry.name): fields for entry in PROC.iterdir() if entry.name.isdigit() if (fields := _stat(entry))}
    below, grown = {server_pid}, True
    while grown:
        more = {pid for pid, fields in stats.items() if int(fields[1]) in below} - below
        below, grown = below | more, bool(more)
    ticks = sum(sum(map(int, stats[pid][11:15])) for pid in below if pid in stats)  # its own, its ended children's
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(process: Path) -> list[str]:
    """State, parent and the fields after; nothing when it has ended meanwhile."""
    try:
        return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
