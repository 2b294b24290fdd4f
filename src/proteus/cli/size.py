"""`proteus size`: how much memory of a GPU a deployment takes, and how many pods its traffic needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from proteus.cli.plainly import told_plainly

DEMO_DEPLOYMENT = Path("deployments/demo.toml")
DEFAULT_SLOTS = 8


def size(
    traffic: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="The GPU, what was measured, who asks for what.")
    ] = None,
    gpu_mib: Annotated[
        int | None, typer.Option(min=1, help="Memory of one GPU, as nvidia-smi prints it; without --traffic.")
    ] = None,
    deployment: Annotated[
        Path, typer.Option(exists=True, dir_okay=False, help="Without --checkpoint: checkpoints, slots, [gpu].")
    ] = DEMO_DEPLOYMENT,
    checkpoint: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="A checkpoint folder alone; config.json is enough."),
    ] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="With --checkpoint: answers at a time; 8.")] = None,
    context_tokens: Annotated[
        int | None, typer.Option(min=1, help="With --checkpoint: of each; by default the checkpoint's own.")
    ] = None,
    kv_bytes: Annotated[
        int | None, typer.Option(min=1, max=4, help="With --checkpoint: of a cached value; by default the weights'.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Plan the GPU memory of each pool, and how many pods a traffic needs; says what is exact and what is assumed."""
    from proteus.deployment import Deployment
    from proteus.estimate_size import Serving, Traffic, estimate_size, size_document, size_tables
    from proteus.estimate_size.traffic import GpuMemory
    from proteus.families.table import load_family

    if (traffic is None) == (gpu_mib is None):
        raise typer.BadParameter("give --traffic, or --gpu-mib for memory alone")
    if checkpoint is None and (slots, context_tokens, kv_bytes) != (None, None, None):
        raise typer.BadParameter("--slots, --context-tokens and --kv-bytes go with --checkpoint")
    with told_plainly():
        asked = Traffic.load(traffic) if traffic is not None else Traffic(gpu=GpuMemory(memory_mib=gpu_mib or 0))
        if checkpoint is None:
            loaded = Deployment.load(deployment)
            told = estimate_size(asked, deployment=loaded, serving=Serving.of(loaded))
        else:
            own = load_family(checkpoint).language.context_tokens
            serving = Serving(
                slots=slots or DEFAULT_SLOTS, context_tokens=context_tokens or own, kv_value_bytes=kv_bytes
            )
            told = estimate_size(asked, checkpoint=checkpoint, serving=serving)
    if as_json:
        typer.echo(json.dumps(size_document(told), indent=2))
        return
    console = Console(highlight=False, markup=False)
    for table in size_tables(told):
        console.print(table)
