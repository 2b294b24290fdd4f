"""A size as tables for a person and as one document for a program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from proteus.estimate_size.fleet import Pods, Size
from proteus.estimate_size.memory import LanguageMemory, PoolMemory
from proteus.estimate_size.traffic import MIB

COSTS = ("pictures", "prompt", "answer", "KV MiB", "GFLOP", "NFE")  # tokens; of the encoder; of the denoiser


def size_tables(size: Size) -> Iterator[Table]:
    """Memory of each pool, the requests, and the pods."""
    for memory in size.memory:
        yield _memory_table(memory)
    if size.fleet.loads:
        yield _load_table(size)
        yield _pods_table(size)


def size_document(size: Size) -> dict[str, Any]:
    """The same for a program; bytes and tokens are whole numbers."""
    return {
        "utilisation": size.utilisation,
        "cached_pictures": size.cached_pictures,
        "memory": {memory.pool: _memory_document(memory) for memory in size.memory},
        "unserved": list(size.unserved),
        "requests": [asdict(load) for load in size.fleet.loads],
        "pods": {pods.pool: _pods_document(pods) for pods in size.fleet.pods},
    }


def _pods_document(pods: Pods) -> dict[str, Any]:
    return {"needed": pods.needed, "pods": pods.number, "why": pods.why}


def _memory_document(memory: PoolMemory) -> dict[str, Any]:
    told: dict[str, Any] = {
        "gpu_bytes": memory.gpu_bytes,
        "used_bytes": memory.used_bytes,
        "fits": memory.fits,
        "on_cpus": memory.on_cpus,
        "rows": [asdict(row) for row in memory.rows],
    }
    if isinstance(memory, LanguageMemory):
        told |= {
            "kv_token_bytes": memory.kv_token_bytes,
            "slot_bytes": memory.slot_bytes,
            "slots": memory.slots,
            "kv_pool_bytes": memory.kv_pool_bytes,
            "slots_that_fit": memory.slots_that_fit,
            "mean_tokens": memory.mean_tokens,
            "requests_that_fit": memory.requests_that_fit,
        }
    return told


def _memory_table(memory: PoolMemory) -> Table:
    where = "the host, on whose CPUs it computes," if memory.on_cpus else "one GPU"
    table = _table(f"memory of {where} of the pool {memory.pool}", ("what", "MiB", "is", "from"))
    for row in memory.rows:
        table.add_row(row.what, _mib(row.num_bytes), row.basis, row.how)
    table.add_section()
    verdict = {True: "fits", False: "does not fit", None: "" if memory.on_cpus else "unknown"}[memory.fits]
    limit = "and what each process takes besides" if memory.on_cpus else f"of {memory.gpu_bytes / MIB:,.0f} MiB"
    table.add_row("all", _mib(memory.used_bytes), verdict, limit, style="bold")
    if isinstance(memory, LanguageMemory):
        _add_slots(table, memory)
    return table


def _add_slots(table: Table, memory: LanguageMemory) -> None:
    if memory.slots_that_fit is None:
        return
    pool = f"of {_mib(memory.kv_pool_bytes)} MiB for keys and values, over all GPUs of the pod"
    few = "" if memory.slots <= memory.slots_that_fit else f": fewer than [llm] slots = {memory.slots}"
    table.add_row("slots that fit", f"{memory.slots_that_fit:,}", "a whole context each", pool + few)
    if memory.requests_that_fit is not None:
        mean = f"{memory.mean_tokens:,} tokens of prompt and answer"
        table.add_row("requests that fit", f"{memory.requests_that_fit:,}", "of mean length", mean)


def _load_table(size: Size) -> Table:
    table = _table("what one of them costs", ("requests", "a second", *COSTS))
    for load in size.fleet.loads:
        table.add_row(
            load.name,
            f"{load.per_s:g}",
            f"{load.pictures:,}",
            f"{load.prompt_tokens:,}",
            f"{load.output_tokens:,}",
            f"{load.kv_bytes / MIB:,.2f}",
            f"{load.encoder_flops / 1e9:,.2f}",
            f"{load.evaluations:,}",
        )
    return table


def _pods_table(size: Size) -> Table:
    table = _table(f"pods, each busy {size.utilisation:.0%} of its time", ("pool", "pods", "exactly", "because of"))
    if size.unserved:
        table.caption = f"left out, for no checkpoint here serves them: {', '.join(size.unserved)}"
        table.caption_justify = "left"
    for pods in size.fleet.pods:
        number = "?" if pods.number is None else f"{pods.number:,}"
        table.add_row(pods.pool, number, "" if pods.needed is None else f"{pods.needed:.2f}", pods.why)
    return table


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        words = column in ("what", "from", "is", "requests", "pool", "because of")
        table.add_column(column, justify="left" if words else "right", overflow="fold", no_wrap=not words)
    return table


def _mib(num_bytes: int | None) -> str:
    return "?" if num_bytes is None else f"{num_bytes / MIB:,.0f}"
