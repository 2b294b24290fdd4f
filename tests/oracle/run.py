"""Compares our plans with transformers' own answers: `python -m tests.oracle.run --count 20000`.

For each case: writes its folder under var/oracle/, asks both sides for `--count` media, and prints every difference.
Stopped and started again, it goes on where it was, unless code or versions changed. Exit code 1 on any difference.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import pkgutil
import platform
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from proteus.families import table
from proteus.families.family import Family, MediaPlan, PlanRefused
from tests.oracle import families
from tests.oracle.case import Counts, Images, Judge, Medium, OracleCase, Refusal, Video
from tests.oracle.torchvision_shim import install

ROOT = Path(__file__).parents[2]
CHUNK = 250
REFUSALS = (ValueError, ZeroDivisionError, IndexError, RuntimeError, OverflowError)  # what transformers raises
PLANS = (PlanRefused,)
MAX_DIFFERENCES = 50
Answer = Counts | Refusal | None


@dataclass
class Progressed:
    """What is known of one case so far; `fingerprint` is of the code and versions that it holds for."""

    fingerprint: str
    judged: int = 0
    refusals_agreed: int = 0
    full_calls: int = 0
    seconds: float = 0.0
    differences: list[dict[str, str]] = field(default_factory=list)
    flops: list[dict[str, str | int]] = field(default_factory=list)

    @property
    def wrong(self) -> bool:
        return bool(self.differences) or any(one["ours"] != one["theirs"] for one in self.flops)


def all_cases() -> list[OracleCase]:
    """Of every module in tests/oracle/families, by name."""
    modules = [importlib.import_module(f"{families.__name__}.{module.name}") for module in _modules()]
    return sorted((case for module in modules for case in module.CASES), key=lambda case: case.name)


def _modules() -> Iterator[pkgutil.ModuleInfo]:
    return pkgutil.iter_modules(families.__path__)


def plans(family: Family, medium: Medium) -> list[MediaPlan]:
    """Our plans for the question; raises PlanRefused."""
    if isinstance(medium, Images):
        together = len(medium.sizes)
        return [family.plan_image(width, height, images_in_request=together) for width, height in medium.sizes]
    if isinstance(medium, Video):
        return [family.plan_video(medium.num_frames, medium.width_px, medium.height_px)]
    return [family.plan_audio(medium.num_samples)]


def ours(family: Family, medium: Medium) -> Counts | Refusal:
    parts = plans(family, medium)
    visual = sum(part.visual_tokens for part in parts)
    return Counts(visual, sum(part.prompt_tokens for part in parts), sum(part.cross_rows for part in parts))


def answer(
    ask: Callable[[], Counts | Refusal | None], refusals: tuple[type[Exception], ...]
) -> Counts | Refusal | None:
    try:
        return ask()
    except refusals as error:
        return Refusal(f"{type(error).__name__}: {error}"[:200])


def agree(one: Answer, other: Answer) -> bool:
    """Equal counts, or both refuse for whatever reason."""
    return one == other or (isinstance(one, Refusal) and isinstance(other, Refusal))


def compare(case: OracleCase, family: Family, folder: Path, known: Progressed, count: int) -> Iterator[None]:
    """Judges the media that are not judged yet, a chunk for every step of the iterator."""
    media = islice(case.media(random.Random(case.name), count), known.judged, None)
    judge, full_judge = case.judge(folder), case.full_judge(folder)
    while chunk := list(islice(media, CHUNK)):
        start = time.perf_counter()
        for medium in chunk:
            mine = answer(lambda medium=medium: ours(family, medium), PLANS)
            judged(judge, medium, mine, known)
            known.judged += 1
            known.refusals_agreed += isinstance(mine, Refusal)
            due = known.full_calls < known.judged // case.full_every  # else the next medium that is small enough
            if full_judge and due and medium.pixels <= case.full_pixels:
                known.full_calls += judged(full_judge, medium, mine, known)
        known.seconds += time.perf_counter() - start
        yield


def judged(judge: Judge, medium: Medium, mine: Answer, known: Progressed) -> bool:
    """Note a difference; False when the judge has no answer."""
    theirs = answer(lambda: judge(medium), REFUSALS)
    if theirs is not None and not agree(mine, theirs) and len(known.differences) < MAX_DIFFERENCES:
        known.differences.append({"medium": str(medium), "ours": str(mine), "theirs": str(theirs)})
    return theirs is not None


def count_flops(case: OracleCase, family: Family, folder: Path) -> list[dict[str, str | int]]:
    """Ours and torch's number of operations for each of the case's media."""
    return [
        {
            "medium": str(medium),
            "ours": sum(plan.encoder_flops for plan in plans(family, medium)),
            "theirs": case.flops(folder, medium),
        }
        for medium in case.flops_media()
    ]


def run_case(case: OracleCase, *, count: int, work: Path, fingerprint: str, step: Callable[[int], None]) -> Progressed:
    """All of one case, from where an earlier run stopped; `step` is told how many media are judged."""
    folder, memory = work / case.name, work / f"{case.name}.json"
    known = Progressed(fingerprint)
    if memory.exists() and (saved := json.loads(memory.read_text()))["fingerprint"] == fingerprint:
        known = Progressed(**saved)
    shutil.rmtree(folder, ignore_errors=True)
    case.write(folder)
    family = table.load_family(folder)
    known.flops = count_flops(case, family, folder)
    step(known.judged)
    for _ in compare(case, family, folder, known, count):
        memory.write_text(json.dumps(asdict(known)))
        step(known.judged)
    return known


def versions() -> dict[str, str]:
    import torch
    import torchvision
    import transformers

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "transformers": transformers.__version__,
    }


def fingerprint_of(case: OracleCase, count: int) -> str:
    """Changes when an answer may change: our code, the case, the versions, the number of media."""
    digest = hashlib.sha256(json.dumps([count, versions(), case.family]).encode())
    for file in (*sorted((ROOT / "src/proteus/families").glob("*.py")), *sorted(Path(__file__).parent.rglob("*.py"))):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def chosen(names: Sequence[str]) -> list[OracleCase]:
    """Cases of the named families or with the named names; all when there is none."""
    cases = all_cases()
    known = {case.name for case in cases} | {case.family for case in cases}
    if missing := set(names) - known:
        raise SystemExit(f"unknown: {', '.join(sorted(missing))}; known are {', '.join(sorted(known))}")
    return [case for case in cases if not names or {case.name, case.family} & set(names)]


def report(case: OracleCase, known: Progressed, print_line: Callable[[str], None]) -> None:
    print_line(
        f"{case.name}: {known.judged:,} judged, {known.refusals_agreed:,} refusals agreed, "
        f"{len(known.differences)} differences, {len(known.flops)} FLOPs, {known.seconds:.1f} s"
    )
    for one in (*known.differences, *(one for one in known.flops if one["ours"] != one["theirs"])):
        print_line(f"  {one['medium']}: ours {one['ours']}, theirs {one['theirs']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", nargs="*", default=[], help="families or cases; all when none is named")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--out", type=Path, help="JSON of the results")
    parser.add_argument("--work", type=Path, default=ROOT / "var" / "oracle")
    arguments = parser.parse_args()
    install()
    results = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        for case in chosen(arguments.family):
            bar = progress.add_task(case.name, total=arguments.count)
            known = run_case(
                case,
                count=arguments.count,
                work=arguments.work,
                fingerprint=fingerprint_of(case, arguments.count),
                step=lambda done, bar=bar: progress.update(bar, completed=done),
            )
            report(case, known, partial(progress.console.print, markup=False, soft_wrap=True))
            results[case.name] = known
    if arguments.out:
        cases = {name: {**asdict(known), "fingerprint": None} for name, known in results.items()}
        arguments.out.write_text(json.dumps({"versions": versions(), "cases": cases}, indent=1) + "\n")
    return int(any(known.wrong for known in results.values()))


if __name__ == "__main__":
    sys.exit(main())
