"""`python -m export.tensorrt_check`: every graph, in its precision and with its profiles, built by TensorRT for RTX.

It needs no GPU and says nothing about numbers or speed on one. Each graph has a process of its own, so that its memory
comes back.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn
from rich.table import Table

from export.tensorrt_plan import Settings, build_plan, check_operators, check_supported
from proteus.configs import DEFAULT_DEPLOYMENT
from proteus.contract_draw import LATENTS
from proteus.deployment import Deployment, DeploymentError
from proteus.engines import EngineStage, graph_path, stages_on_tensorrt
from proteus.errors import ProteusError
from proteus.limits_gpu import Precision
from proteus.profiles import Profile, profiles_of

DEMO, LLAVA, SD = "demo", "llava-1.5", "sd-1.5"
LARGE: Mapping[str, tuple[EngineStage, ...]] = {
    LLAVA: ("vision_encoder", "connector"),
    SD: ("text_encoder", "denoiser", "vae_decoder"),
}
SMS = (80, 89, 120)  # TensorRT for RTX knows no other server GPUs
OLDEST_SM: Mapping[Precision, int] = {"fp8": 89}  # older GPUs have none
LONGEST_S = 900
MAX_LATENTS = 16  # along a side of a random sample
KILLED = "its process was killed: is there memory enough?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One graph to build."""

    size: str
    stage: EngineStage
    precision: Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a case; `reason` is empty where everything was built."""

    size: str
    stage: EngineStage
    precision: Precision
    sms: tuple[int, ...] = ()
    nodes: int = 0
    profiles: int = 0
    kept_fp32: int = 0  # nodes that would overflow
    build_s: float = 0.0
    plan_bytes: int = 0
    peak_bytes: int = 0  # memory of its process
    reason: str = ""


def main(command: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m export.tensorrt_check", description=__doc__)
    parser.add_argument("--deployment", type=Path, default=DEFAULT_DEPLOYMENT, help="whose graphs are built")
    parser.add_argument("--size", choices=("demo", "large", "all"), default="all", help="large: LLaVA-1.5's, SD-1.5's")
    parser.add_argument("--precision", choices=get_args(Precision), help="of every stage; else the deployment file's")
    parser.add_argument("--only", metavar="SIZE/STAGE", help="one graph, such as sd-1.5/denoiser, in this process")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")
    given = parser.parse_args(command)
    try:
        rtx()
        cases = cases_of(Deployment.load(given.deployment), given.size, given.precision)
        if given.only is not None:
            results = [check(case, given.deployment) for case in _named(cases, given.only)]
        else:
            results = list(_run_all(cases, given.deployment))
    except (ProteusError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if given.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        _print(results)
    return int(any(result.reason for result in results))


def rtx() -> Any:
    """TensorRT for RTX; raises DeploymentError where it is not installed."""
    try:
        return importlib.import_module("tensorrt_rtx")
    except ImportError as error:
        raise DeploymentError("TensorRT for RTX is not installed here", fix="run make setup-dev") from error


def cases_of(deployment: Deployment, size: str, precision: Precision | None) -> tuple[Case, ...]:
    """Every graph of the size, in the precision of the deployment file or in the one given."""
    served = stages_on_tensorrt(deployment)

    def case(name: str, stage: EngineStage) -> Case:
        of_file = getattr(deployment.gpu, stage).precision if stage in served else "fp16"
        return Case(size=name, stage=stage, precision=precision or of_file)

    demo = [case(DEMO, stage) for stage in served] if size != "large" else []
    large = [case(name, stage) for name, stages in LARGE.items() for stage in stages] if size != "demo" else []
    return (*demo, *large)


def check(case: Case, deployment_path: Path, sms: Sequence[int] = SMS) -> Result:
    """Make the graph, type it, build it; what does not work is the result's reason."""
    oldest = OLDEST_SM.get(case.precision, 0)
    result = Result(**asdict(case), sms=tuple(sm for sm in sms if sm >= oldest))
    with tempfile.TemporaryDirectory(prefix="tensorrt-check-") as folder:
        try:
            built = _built(result, deployment_path, Path(folder))
        except ProteusError as error:
            built = replace(result, reason=str(error))
    peaks = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return replace(built, peak_bytes=max(peaks) * 1024)


def _built(result: Result, deployment_path: Path, scratch: Path) -> Result:
    from export.calibration import samples_of
    from export.precision import typed

    trt, stage = rtx(), result.stage
    if result.size == DEMO:
        deployment = Deployment.load(deployment_path)
        samples = samples_of(deployment, stage)
    else:
        deployment = _large(result.size, stage, scratch)
        samples = [random_sample(graph_path(deployment.repository_path, stage), profiles_of(deployment, stage)[0])]
    profiles = profiles_of(deployment, stage)
    graph, low = graph_path(deployment.repository_path, stage), scratch / "typed.onnx"
    report = typed(graph, stage, result.precision, samples, low)
    nodes = check_operators(low, stage)
    check_supported(trt, low, stage)
    settings = Settings(
        optimization_level=3,
        workspace_bytes=deployment.gpu.workspace_bytes if deployment.gpu is not None else 1 << 32,
        tf32=result.precision != "fp32",
        sms=result.sms,
    )
    plan = build_plan(trt, low, stage, profiles, settings)
    return replace(
        result,
        nodes=nodes,
        profiles=len(profiles),
        kept_fp32=len(report.kept),
        build_s=round(plan.build_s, 1),
        plan_bytes=memoryview(plan.content).nbytes,
    )


def _large(size: str, stage: str, folder: Path) -> Deployment:
    """Made in a process of its own: the weights are in memory once then, while the graph is typed and built."""
    done = subprocess.run(
        [sys.executable, "-m", "export.tensorrt_sizes", size, stage, str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        told = done.stderr.strip().splitlines()[-1:] or [KILLED]
        raise DeploymentError(f"{size} {stage} was not exported: exit {done.returncode}: {told[0]}")
    return Deployment.load(folder / "deployment.toml")


def random_sample(graph: Path, profile: Profile) -> dict[str, np.ndarray]:
    """One row, of numbers such as the stage gets. Large pictures are made small, to save memory and time."""
    rng = np.random.default_rng(0)
    kinds = {
        port.name: onnx.helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type)
        for port in onnx.load(graph, load_external_data=False).graph.input
    }
    sample: dict[str, np.ndarray] = {}
    for name, (given, _, _) in profile.shapes.items():
        least = (*given[:2], *(min(side, MAX_LATENTS) for side in given[2:])) if name == LATENTS.name else given
        if kinds[name].kind == "f":
            sample[name] = rng.standard_normal(least).astype(kinds[name])
        else:
            sample[name] = rng.integers(0, 100, least).astype(kinds[name])
    if "timestep" in sample:
        sample["timestep"] += 500
    return sample


def _named(cases: Sequence[Case], name: str) -> list[Case]:
    found = [case for case in cases if f"{case.size}/{case.stage}" == name]
    if not found:
        known = ", ".join(f"{case.size}/{case.stage}" for case in cases)
        raise DeploymentError(f"no graph is named {name}", limit=f"known are {known}")
    return found


def _run_all(cases: Sequence[Case], deployment_path: Path) -> Iterator[Result]:
    console = Console(stderr=True)
    columns = (SpinnerColumn(), *Progress.get_default_columns()[:2], TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(cases))
        for case in cases:
            progress.update(task, description=f"{case.size} {case.stage} in {case.precision}")
            result = run_apart(case, deployment_path)
            progress.console.print(
                f"{case.size} {case.stage}: {'failed' if result.reason else 'built'}", soft_wrap=True
            )
            progress.advance(task)
            yield result


def run_apart(case: Case, deployment_path: Path) -> Result:
    """`check` in a process of its own."""
    command = [sys.executable, "-m", "export.tensorrt_check", "--json", "--only", f"{case.size}/{case.stage}"]
    command += ["--precision", case.precision, "--deployment", str(deployment_path)]
    result = Result(**asdict(case))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, env=environment)
    except subprocess.TimeoutExpired:
        return replace(result, reason=f"not built within {LONGEST_S} s")
    try:
        (document,) = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.strip().splitlines()[-1:] or [KILLED]
        return replace(result, reason=f"exit {done.returncode}: {last[0]}")
    return Result(**document | {"sms": tuple(document["sms"])})


def _print(results: Sequence[Result]) -> None:
    console = Console(highlight=False)
    kinds = sorted({sm for result in results for sm in result.sms})
    caption = f"kept: nodes in fp32; for compute capabilities {', '.join(map(str, kinds))}"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, caption=caption, caption_justify="left")
    for column in ("graph", "in", "nodes", "kept", "profiles", "build s", "plan MB", "peak GB"):
        table.add_column(column, justify="left" if column in ("graph", "in") else "right", no_wrap=True)
    for result in results:
        counts = (result.nodes, result.kept_fp32, result.profiles)
        table.add_row(
            f"{result.size} {result.stage}",
            result.precision,
            *("failed" if result.reason else str(number) for number in counts),
            f"{result.build_s:.1f}",
            f"{result.plan_bytes / 1e6:.1f}",
            f"{result.peak_bytes / 1e9:.1f}",
        )
    console.print(table)
    for result in results:
        if result.reason:
            console.print(f"{result.size} {result.stage}: {result.reason}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
