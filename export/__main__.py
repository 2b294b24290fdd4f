"""`python -m export CHECKPOINT [--out OUT]`: a checkpoint to ONNX files and a deployment folder for Triton.

LLaVA's layout reads pictures, diffusers' draws them; a deployment folder can hold one of each.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: a checkpoint is a folder, never a name to fetch

import torch
from diffusers.utils import logging as diffusers_logging
from rich.console import Console
from rich.table import Table
from transformers.utils import logging

from export.diffusion_checkpoint import is_draw_checkpoint
from export.diffusion_repository import export_draw_checkpoint
from export.parity import TOLERANCE
from export.repository import Report, export_checkpoint
from proteus.errors import ProteusError


def main(command: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m export", description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="folder in LLaVA's layout or in diffusers'")
    parser.add_argument("--out", type=Path, help="deployment folder to write; without it, the demo's model_repository/")
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
        export = export_draw_checkpoint if is_draw_checkpoint(arguments.checkpoint) else export_checkpoint
        report = export(arguments.checkpoint, arguments.out, progress=progress)
    except (ProteusError, OSError) as error:  # OSError: no place to write to, or no room left there
        sys.stderr.write(f"{error}\n")
        return 2
    if arguments.json:
        print(json.dumps(_document(report), indent=2))
    else:
        _print(report)
    return 0


def _document(report: Report) -> dict[str, object]:
    return {
        "deployment": str(report.deployment),
        "comparisons": [asdict(comparison) for comparison in report.comparisons],
        "file_bytes": report.file_bytes,
        "manifest": report.manifest,
    }


def _print(report: Report) -> None:
    console = Console()
    table = Table("graph", "case", "max |difference|", "of scale", title=f"against torch, limit {TOLERANCE:g} of scale")
    for row in report.comparisons:
        table.add_row(row.graph, row.case, f"{row.max_abs_diff:.1e}", f"{row.max_abs_diff / row.scale:.1e}")
    console.print(table)
    sizes = Table("file", "MB")
    for name, size in report.file_bytes.items():
        sizes.add_row(name, f"{size / 1e6:.2f}")
    console.print(sizes)
    console.print(f"serve it: proteus serve --deployment {report.deployment}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
