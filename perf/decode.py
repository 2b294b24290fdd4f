"""What decoding in another process costs, and what a smaller size saves.

    python -m perf.decode [--rounds 60] [--out perf/results/decode.json]

`overhead`: one picture to pixel_values in this process, and through a worker of the pool, by turns; ms, one thread.
Processor time, of both processes together, is what other work on the machine disturbs least.
`smaller`: a JPEG of 12 megapixels to a target size, all pixels decoded against the JPEG's own reduced decode; CPU ms of
this process, and how far the results are apart in 8-bit levels, for a page of small print.
`death`: ms to the answer of the request that follows a worker's death, and ms that a new worker takes to start.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from PIL import Image, ImageDraw, ImageFont
from rich.progress import track

from proteus.deployment import Deployment
from proteus.errors import InvalidPicture
from proteus.preprocess import decode as decoding
from proteus.preprocess.decode import decode
from proteus.preprocess.picture import Preprocess
from proteus.preprocess.pool import DecodePool

DEPLOYMENT = Path("deployments/demo.toml")
OVERHEAD_PX = ((96, 96), (336, 336), (640, 480), (1920, 1080))
LARGE_PX = (4000, 3000)
TARGETS_PX = ((1600, 1200), (1000, 750), (512, 384), (336, 252))
NO_DRAFT = 1_000
LARGE_ROUNDS = 5


def page(width_px: int, height_px: int, name: str) -> bytes:
    """A page of small black print with a little noise, as a file: the hardest of ordinary pictures to shrink well."""
    picture = Image.new("RGB", (width_px, height_px), "white")
    ink, line = (
        ImageDraw.Draw(picture),
        "the quick brown fox jumps over the lazy dog 0123456789 " * (1 + width_px // 400),
    )
    for top in range(0, height_px, 24):
        ink.text((0, top), line, fill="black", font=ImageFont.load_default(20))
    noisy = np.asarray(picture) + np.random.default_rng(0).normal(0, 3, (height_px, width_px, 3))
    out = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(out, name, quality=90)
    return out.getvalue()


def timed_ms(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    started = clock()
    work()
    return (clock() - started) * 1000


def overhead(pool: DecodePool, here: Preprocess, rounds: int) -> list[dict[str, Any]]:
    """By turns, so that whatever else the machine does meets both alike."""
    rows = []
    for width_px, height_px in OVERHEAD_PX:
        for name in ("JPEG", "PNG"):
            data = page(width_px, height_px, name)
            wall: dict[str, list[float]] = {"in_process": [], "worker": []}
            workers_cpu, own_cpu = _cpu_ms(pool.worker_pids()), {"in_process": 0.0, "worker": 0.0}
            work = {"in_process": partial(here, data), "worker": lambda data=data: pool.submit(data).result()}
            for _ in track(range(rounds), description=f"{name} of {width_px}x{height_px}"):
                for kind, run in work.items():
                    started = time.process_time()
                    wall[kind].append(timed_ms(run))
                    own_cpu[kind] += (time.process_time() - started) * 1000
            own_cpu["worker"] += _cpu_ms(pool.worker_pids()) - workers_cpu
            rows.append(
                {
                    "size_px": [width_px, height_px],
                    "format": name,
                    "bytes": len(data),
                    "wall_median": {kind: _ms(statistics.median(all_ms)) for kind, all_ms in wall.items()},
                    "wall_least": {kind: _ms(min(all_ms)) for kind, all_ms in wall.items()},
                    "cpu_mean": {kind: _ms(total_ms / rounds) for kind, total_ms in own_cpu.items()},
                }
            )
    return rows


def smaller(deployment: Deployment) -> list[dict[str, Any]]:
    """Reduced decode at each factor that must be left for the resize, against decoding all pixels."""
    data, limits, rows = page(*LARGE_PX, "JPEG"), deployment.image, []
    chosen = decoding.DRAFT_AT_LEAST
    for target_px in track(TARGETS_PX, description="smaller sizes"):
        work = partial(decode, data, limits, target_px)
        results, cpu_ms = {}, {}
        for at_least in (NO_DRAFT, 2, 1):
            decoding.DRAFT_AT_LEAST = at_least
            cpu_ms[at_least] = min(timed_ms(work, time.process_time) for _ in range(LARGE_ROUNDS))
            results[at_least] = work()
        row: dict[str, Any] = {"target_px": list(target_px), "all_pixels_cpu_ms": _ms(cpu_ms[NO_DRAFT])}
        for at_least in (2, 1):
            far = np.abs(results[at_least].astype(int) - results[NO_DRAFT])
            row[f"draft_at_least_{at_least}x"] = {
                "cpu_ms": _ms(cpu_ms[at_least]),
                "levels_mean": round(float(far.mean()), 3),
                "levels_p999": int(np.percentile(far, 99.9)),
                "levels_max": int(far.max()),
            }
        rows.append(row)
    decoding.DRAFT_AT_LEAST = chosen
    return rows


def death(pool: DecodePool) -> dict[str, float]:
    """The worker that is lent next is killed while it decodes; then the next request is timed."""
    large, small = page(*LARGE_PX, "JPEG"), page(96, 96, "PNG")
    after, start = [], []
    for _ in track(range(LARGE_ROUNDS), description="deaths"):
        before = set(pool.worker_pids())
        doomed = pool.submit(large)
        time.sleep(0.05)
        os.kill(next(iter(before - pool.idle_pids())), 9)
        started = time.perf_counter()
        if not isinstance(doomed.exception(), InvalidPicture):
            raise SystemExit("the worker was not killed in time")
        after.append(timed_ms(lambda: pool.submit(small).result()))
        while len(pool.idle_pids()) < len(before):
            time.sleep(0.005)
        start.append((time.perf_counter() - started) * 1000)
    return {"next_answer_ms": _ms(statistics.median(after)), "new_worker_ms": _ms(statistics.median(start))}


def _cpu_ms(pids: set[int]) -> float:
    """Processor time of the processes so far, in steps of a clock tick."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields) * 1000 / os.sysconf("SC_CLK_TCK")


def _ms(value: float) -> float:
    return round(value, 2)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.decode", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("perf/results/decode.json"))
    arguments = parser.parse_args()
    deployment = Deployment.load(DEPLOYMENT)
    pool = DecodePool(deployment)
    try:
        result = {
            "command": f"python -m perf.decode --rounds {arguments.rounds} --out {arguments.out}",
            "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
            "load_average_1min": round(os.getloadavg()[0], 1),
            "versions": {"python": platform.python_version(), "pillow": PIL.__version__, "numpy": np.__version__},
            "overhead_ms": overhead(pool, Preprocess.from_deployment(deployment), arguments.rounds),
            "smaller": smaller(deployment),
            "death": death(pool),
        }
    finally:
        pool.close()
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result["smaller"], indent=2))


if __name__ == "__main__":
    main()
