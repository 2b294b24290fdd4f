"""What a model.py learns from Triton's `args` when it starts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from proteus.deployment import Deployment

IDLE = 20  # beyond the 19 of nice(1)


def load_deployment(args: Mapping[str, str]) -> Deployment:
    """The deployment that the model's config.pbtxt names, relative to the model repository."""
    parameters = json.loads(args["model_config"])["parameters"]
    repository = Path(args["model_repository"]).parent
    return Deployment.load(repository / parameters["deployment"]["string_value"])


def be_nice(args: Mapping[str, str]) -> None:
    """Run this process, and those that it starts, at the priority that the model's config.pbtxt gives it."""
    nice = int(json.loads(args["model_config"])["parameters"]["nice"]["string_value"])
    for thread in map(int, os.listdir("/proc/self/task")):  # Linux keeps a priority for each; new ones inherit it
        if nice < IDLE:
            os.setpriority(os.PRIO_PROCESS, thread, nice)
        else:
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


def version_folder(args: Mapping[str, str]) -> Path:
    """Where the model's own files are."""
    return Path(args["model_repository"]) / args["model_version"]
