"""How far a build is, and what came of it, for whoever waits at a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from export.engines import Made
from export.tensorrt_plan import Phase


@contextmanager
def shown_phases() -> Iterator[Phase]:
    """A bar for each phase of TensorRT's builder while it runs; nothing where nobody watches."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    tasks: dict[str, TaskID] = {}
    one_at_a_time = Lock()  # TensorRT calls from threads of its own
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def phase(name: str, done: int, of: int) -> None:
            with one_at_a_time:
                if name not in tasks:
                    tasks[name] = progress.add_task(name, total=of)
                progress.update(tasks[name], completed=done, total=of)
                if done >= of:
                    progress.remove_task(tasks.pop(name))

        yield phase


def engines_table(made: Sequence[Made]) -> Table:
    table = Table("engine", "build", "profiles", "in fp32", "typed graph", "engine", "MB", "built in s")
    for one in made:
        report = one.engine.report
        table.add_row(
            one.engine.stage,
            one.engine.name,
            str(len(one.engine.profiles)),
            str(len(report.get("graph", {}).get("kept", ()))),
            _worst(report.get("graph")),
            _worst(report.get("engine")),
            f"{one.engine.plan_bytes / 1e6:.1f}",
            f"{one.engine.build_s:.0f}" if one.built else "kept",
        )
    table.title = "off from ONNX Runtime, of scale"
    return table


def _worst(report: dict[str, list[dict[str, float]]] | None) -> str:
    """The largest difference of any output; nothing where nothing was compared."""
    outputs = report["outputs"] if report else ()
    return f"{max(output['of_scale'] for output in outputs):.1e}" if outputs else "-"
