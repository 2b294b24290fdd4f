"""A training run that can stop at any step and go on: step count, weights and optimizer state in one file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

_WARMUP, _DECAY = 50, 0.4
_console = Console(stderr=True)


def pace(step: int, steps: int) -> float:
    """Warm-up, a plateau, then a linear fall to a hundredth over the last _DECAY of the run."""
    left = (steps - step) / (steps * _DECAY)
    return max(0.01, min(1.0, (step + 1) / _WARMUP, left))


class Run:
    """The state of one stage of training under `path`; starts from it where it exists."""

    def __init__(self, path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.path, self.model, self.optimizer = path, model, optimizer
        self.step = 0
        if path.exists():
            state = torch.load(path, weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            self.step = state["step"]

    def steps(self, until: int, name: str) -> Iterator[int]:
        """Step numbers from where the run stands up to `until`, with a progress bar."""
        columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=_console) as progress:
            task = progress.add_task(name, total=until, completed=self.step)
            while self.step < until:
                yield self.step
                self.step += 1
                progress.update(task, completed=self.step)

    def save(self) -> None:
        """Written beside and moved, so that a stop in the middle leaves the old state."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step + 1}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.path)

    @staticmethod
    def log(line: str) -> None:
        _console.log(line)
