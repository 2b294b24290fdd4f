"""What a model.py learns from Triton's `args` when it starts."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proteus.deployment import Deployment

LEAST_PRIORITY = 19  # as Unix counts: the higher, the later


def load_deployment(args: Mapping[str, str]) -> Deployment:
    """The deployment that the model's config.pbtxt names, relative to the model repository."""
    from proteus.deployment import Deployment  # with pydantic, which a stub that runs a graph alone needs not

    parameters = json.loads(args["model_config"])["parameters"]
    repository = Path(args["model_repository"]).parent
    return Deployment.load(repository / parameters["deployment"]["string_value"])


def runtime_of(args: Mapping[str, str]) -> str:
    """What the model's configuration names to run its graph: `onnxruntime` where it names nothing."""
    parameters = json.loads(args["model_config"])["parameters"]
    return str(parameters.get("runtime", {}).get("string_value", "onnxruntime"))


def hardware_of(args: Mapping[str, str]) -> str:
    """What the server's configurations are for: `cpu` where the model's own names nothing."""
    parameters = json.loads(args["model_config"])["parameters"]
    return str(parameters.get("hardware", {}).get("string_value", "cpu"))


def device_of(args: Mapping[str, str]) -> int | None:
    """The GPU that Triton gave this instance; None: it runs on the CPU."""
    return int(args["model_instance_device_id"]) if args["model_instance_kind"] == "GPU" else None


def nice_of(args: Mapping[str, str]) -> int:
    """What the model's config.pbtxt gives it."""
    return int(json.loads(args["model_config"])["parameters"]["nice"]["string_value"])


def be_nicer(by: int) -> None:
    """Run this process, and those that it starts, at a lower priority than the server was started with."""
    nice = min(os.getpriority(os.PRIO_PROCESS, 0) + by, LEAST_PRIORITY)
    for thread in os.listdir("/proc/self/task"):  # Linux keeps a priority for each thread; new ones inherit it
        os.setpriority(os.PRIO_PROCESS, int(thread), nice)


def loop_on_libuv() -> None:
    """The stub makes the event loop of an `async execute` with the first request: on libuv, as the gateway's is."""
    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


def version_folder(args: Mapping[str, str]) -> Path:
    """Where the model's own files are."""
    return Path(args["model_repository"]) / args["model_version"]
