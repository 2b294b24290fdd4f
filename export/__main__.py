"""`python -m export CHECKPOINT [--out OUT] [--target TARGET]`: a checkpoint to a deployment folder for Triton.

LLaVA's layout reads pictures, diffusers' draws them; a deployment folder can hold one of each. Engines and programs lie
beside the ONNX files, which are exported first where they are not those of the checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: a checkpoint is a folder, never a name to fetch

import torch
from diffusers.utils import logging as diffusers_logging
from rich.console import Console
from rich.table import Table
from transformers.utils import logging

from export.diffusion_checkpoint import is_draw_checkpoint
from export.diffusion_repository import export_draw_checkpoint
from export.engines import build_engines
from export.engines_host import hosts_here, tensorrt_here
from export.engines_shown import engines_table, shown_phases
from export.onnx_first import exported, stages_of
from export.parity import TOLERANCE
from export.repository import Progress, export_checkpoint
from export.torch_program import export_programs
from export.weights import bring_weights
from proteus.deployment import Deployment
from proteus.engines import stages_on_tensorrt
from proteus.errors import ProteusError

Told = tuple[dict[str, Any], Sequence[Table]]  # as JSON, and for people


def main(command: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m export", description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="folder in LLaVA's layout or in diffusers'")
    parser.add_argument("--out", type=Path, help="deployment folder to write; without it, the demo's model_repository/")
    parser.add_argument("--target", choices=tuple(TARGETS), default="onnx", help="what runs the graphs of a GPU host")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the tables")
    arguments = parser.parse_args(command)

    torch.set_num_threads(1)
    for library in (logging, diffusers_logging):
        library.set_verbosity_error()
        library.disable_progress_bar()
    begin = time.monotonic()

    def progress(step: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - begin:6.1f} s] {step}\n")
        sys.stderr.flush()

    try:
        document, tables = TARGETS[arguments.target](arguments.checkpoint, arguments.out, progress)
    except (ProteusError, OSError) as error:  # OSError: no place to write to, or no room left there
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("stopped; what was not finished is not installed\n")
        return 130
    if arguments.json:
        print(json.dumps(document, indent=2))
    else:
        console = Console()
        for table in tables:
            console.print(table)
        console.print(
            f"serve it: proteus serve --deployment {document['deployment']}{SERVED[arguments.target]}", soft_wrap=True
        )
    return 0


def _onnx(folder: Path, out: Path | None, progress: Progress) -> Told:
    export = export_draw_checkpoint if is_draw_checkpoint(folder) else export_checkpoint
    report = export(folder, out, progress=progress)
    compared = Table(
        "graph", "case", "max |difference|", "of scale", title=f"against torch, limit {TOLERANCE:g} of scale"
    )
    for row in report.comparisons:
        compared.add_row(row.graph, row.case, f"{row.max_abs_diff:.1e}", f"{row.max_abs_diff / row.scale:.1e}")
    sizes = Table("file", "MB")
    for name, size in report.file_bytes.items():
        sizes.add_row(name, f"{size / 1e6:.2f}")
    document = {
        "deployment": str(report.deployment),
        "comparisons": [asdict(comparison) for comparison in report.comparisons],
        "file_bytes": report.file_bytes,
        "manifest": report.manifest,
    }
    return document, (compared, sizes)


def _tensorrt(folder: Path, out: Path | None, progress: Progress) -> Told:
    tensorrt_here()  # before anything slow
    path = exported(folder, out, progress)
    deployment = Deployment.load(path)
    _bring_weights(folder, deployment, progress)
    stages = [stage for stage in stages_of(folder) if stage in stages_on_tensorrt(deployment)]
    hosts = {} if deployment.gpu is None else hosts_here(path, deployment.gpu, stages)
    with shown_phases() as phase:
        made = build_engines(deployment, hosts, progress=progress, phase=phase)
    return {"deployment": str(path), "engines": [one.document() for one in made]}, (engines_table(made),)


def _torch(folder: Path, out: Path | None, progress: Progress) -> Told:
    path = exported(folder, out, progress)
    _bring_weights(folder, Deployment.load(path), progress)
    programs = export_programs(path, progress, checkpoint=folder)
    table = Table("program", "MB", "max |difference|", "of scale", title="against ONNX Runtime")
    for row in programs:
        table.add_row(
            row.model, f"{row.num_bytes / 1e6:.2f}", f"{row.max_abs_diff:.1e}", f"{row.max_abs_diff / row.scale:.1e}"
        )
    document = {"deployment": str(path), "programs": [asdict(row) | {"path": str(row.path)} for row in programs]}
    return document, (table,)


def _bring_weights(folder: Path, deployment: Deployment, progress: Progress) -> None:
    if not is_draw_checkpoint(folder) and bring_weights(folder, deployment):
        progress("the weights lie beside the texts, for TensorRT-LLM")


TARGETS: Mapping[str, Callable[[Path, Path | None, Progress], Told]] = {
    "onnx": _onnx,
    "tensorrt": _tensorrt,
    "torch": _torch,
}
SERVED = {"onnx": "", "tensorrt": " --hardware gpu", "torch": " --hardware gpu"}


if __name__ == "__main__":
    sys.exit(main())
