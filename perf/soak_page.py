"""docs/plots/soak.png and the tables of docs/soak.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perf.soak_kinds import Tally
from perf.soak_processes import Held, Sample
from perf.soak_run import Course

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "soak.md"
PLOT = ROOT / "docs" / "plots" / "soak.png"
MEMORY_COLUMNS = ("process", "PSS after, MiB", "at the end", "ratio", "RSS, MiB", "open files", "threads")
OUTCOME_COLUMNS = ("what a client did", "requests", "how they ended")
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    requests: int  # that have ended by then
    sample: Sample


def write_page(
    points: Sequence[Point], baseline: Sample, end: Sample, course: Course, tally: Tally, *, plot_file: Path = PLOT
) -> None:
    plot(points, course, plot_file)
    page = PAGE.read_text(encoding="utf-8")
    for columns, rows in ((MEMORY_COLUMNS, memory_rows(baseline, end)), (OUTCOME_COLUMNS, outcome_rows(tally))):
        page = with_table(page, columns, rows)
    PAGE.write_text(page, encoding="utf-8")


def with_table(page: str, columns: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """The page with these rows in the place of those that its table of these columns has."""
    head = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
    body = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return re.sub(rf"{re.escape(head)}(\|.*\n)*", lambda _: head + body, page)


def memory_rows(baseline: Sample, end: Sample) -> Iterator[Sequence[str]]:
    for role, held in sorted(end.by_role.items(), key=lambda pair: -pair[1].pss_bytes):
        yield _memory_row(role, baseline.by_role.get(role, Held()), held)
    yield _memory_row("**all**", baseline.whole, end.whole)
    shm = baseline.shm_bytes, end.shm_bytes
    yield ("/dev/shm", *_mib(*shm), f"{shm[1] / shm[0]:.3f}", "", "", "")


def _memory_row(role: str, before: Held, after: Held) -> Sequence[str]:
    name = f"{role} ({after.processes})" if after.processes > 1 else role
    ratio = f"{after.pss_bytes / before.pss_bytes:.3f}" if before.pss_bytes else ""
    pairs = ((before.files, after.files), (before.threads, after.threads))
    rss = " -> ".join(_mib(before.rss_bytes, after.rss_bytes))
    return (name, *_mib(before.pss_bytes, after.pss_bytes), ratio, rss, *(f"{one} -> {other}" for one, other in pairs))


def _mib(*sizes_bytes: int) -> Sequence[str]:
    return tuple(f"{size / MIB:,.1f}" for size in sizes_bytes)


def outcome_rows(tally: Tally) -> Iterator[Sequence[str]]:
    by_kind: dict[str, Counter[str]] = {}
    for (kind, outcome), count in tally.outcomes.items():
        by_kind.setdefault(kind, Counter())[outcome] += count
    for kind, outcomes in sorted(by_kind.items(), key=lambda pair: -pair[1].total()):
        told = ", ".join(f"{outcome} {count:,}" for outcome, count in outcomes.most_common())
        yield (kind.replace("_", " "), f"{outcomes.total():,}", told)


def plot(points: Sequence[Point], course: Course, file: Path) -> None:
    """Above the memory of all processes together, below that of each."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(12, 8), sharex=True, height_ratios=(1, 2), layout="constrained"
    )
    ended = [point.requests for point in points]
    above.plot(ended, [point.sample.whole.pss_bytes / MIB for point in points], color="#1b6ca8", label="all processes")
    above.plot(ended, [point.sample.shm_bytes / MIB for point in points], color="#d1495b", label="/dev/shm")
    roles = sorted({role for point in points for role in point.sample.by_role})
    for number, role in enumerate(roles):
        held = [point.sample.by_role.get(role, Held()).pss_bytes / MIB for point in points]
        below.plot(ended, held, color=pyplot.get_cmap("tab20")(number), label=role, linewidth=1.2)
    for axis in (above, below):
        axis.axvline(course.stub_dies_at, color="black", linestyle=":", label="a stub is killed")
        axis.axvline(course.baseline_at, color="black", linestyle="--", label="compared with")
        for number in course.workers_die_at:
            axis.axvline(number, color="grey", linestyle=":", linewidth=0.8)
        axis.set(ylabel="PSS, MiB", ylim=(0, None))
        axis.grid(alpha=0.25)
        axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    below.set(xlabel="requests that have ended")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=100, metadata={"Software": None})
    pyplot.close(figure)
