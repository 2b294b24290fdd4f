"""How long the header of a picture takes: ordinary files, files at the demo's byte cap, long animations, and files made
to keep the parser busy. Nothing is decoded, so the size of a file should hardly matter.

On a machine that others use too, time of the CPU is the number to compare; wall time is reported beside it.

    python -m perf.probe [--rounds 5000] [--pillow] [--out perf/results/probe.json]

`--pillow` asks Pillow for the same facts instead: size, turn and number of frames.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pillow_heif
from PIL import Image

from proteus.errors import ProteusError
from proteus.media.probe import probe

CAP_BYTES = 10_485_760  # [image] max_bytes of the demo
LONGEST_S = 4.0  # spent on one file
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "HEIF", "AVIF")


def encoded(picture: Image.Image, name: str, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, name, **options)
    return out.getvalue()


def noise(width_px: int, height_px: int) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height_px, width_px, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def ordinary() -> Iterator[tuple[str, bytes]]:
    """1200x900 px, smooth as a photograph, with EXIF where the format has a place for it."""
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "camera"
    photo = noise(40, 30).resize((1200, 900), Image.Resampling.BICUBIC)
    for name in FORMATS:
        options = {} if name in ("GIF", "BMP") else {"exif": exif}
        yield f"{name.lower()} of 1200x900 px", encoded(photo, name, **options)
    yield "progressive jpeg of 1200x900 px", encoded(photo, "JPEG", progressive=True, exif=exif)


def at_the_cap() -> Iterator[tuple[str, bytes]]:
    yield "png at the cap", encoded(noise(1860, 1860), "PNG")
    yield "jpeg at the cap", encoded(noise(2300, 2300), "JPEG", quality=98)
    yield "webp at the cap", encoded(noise(1860, 1860), "WEBP", lossless=True, method=0, quality=0)
    yield "gif at the cap", encoded(Image.fromarray(np.asarray(noise(2750, 2750))[..., 0]), "GIF")
    yield "bmp at the cap", encoded(noise(1860, 1860), "BMP")
    yield "tiff at the cap", encoded(noise(1860, 1860), "TIFF")


def animated() -> Iterator[tuple[str, bytes]]:
    frames = [noise(8, 8).resize((64, 64)).rotate(angle % 360) for angle in range(500)]
    for name in ("PNG", "GIF", "WEBP"):
        yield f"{name.lower()} of 500 frames", encoded(frames[0], name, save_all=True, append_images=frames[1:])


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def hostile() -> Iterator[tuple[str, bytes]]:
    png = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", struct.pack(">IIBBBBB", 67, 35, 8, 2, 0, 0, 0))
    packed = png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(b" " * 3_000_000))
    gif = b"GIF89a" + struct.pack("<HHBBB", 67, 35, 0, 0, 0)
    pixels = b",\0\0\0\0\1\0\1\0\0\2"
    units = {
        "png of 1-byte chunks": (png, png_chunk(b"teXt", b"x")),
        "png of packed texts": (png, packed),
        "jpeg of empty segments": (b"\xff\xd8", b"\xff\xe1\0\2"),
        "jpeg of padding": (b"\xff\xd8", b"\xff"),
        "gif of 1-byte blocks": (gif + pixels, b"\1a"),
        "gif of uneven blocks": (gif + pixels, b"\1a" * 17 + b"\2aa"),
        "gif of empty extensions": (gif, b"!\xf9\0"),
        "gif of tiny frames": (gif, pixels + b"\0"),
        "webp of empty frames": (
            b"RIFF\xff\xff\xff\xffWEBPVP8X\x0a\0\0\0\2\0\0\0\x20\0\0\x20\0\0",
            b"ANMF\0\0\0\0",
        ),
        "heic of empty boxes": (b"\0\0\0\x10ftypheic\0\0\0\0\0\0\0\0meta\0\0\0\0", b"\0\0\0\x08free"),
        "tiff of 4096 tags": (b"II*\0\x08\0\0\0\0\x10", struct.pack("<HHII", 256, 3, 1, 67)),
    }
    for name, (head, unit) in units.items():
        yield name, head + unit * ((CAP_BYTES - len(head)) // len(unit))


def measure(data: bytes, rounds: int, is_refused: Callable[[bytes], bool]) -> dict[str, Any]:
    """Microseconds of `rounds` probes, or of as many as fit in LONGEST_S, two at least."""
    cpu_us, wall_us, end = [], [], time.monotonic() + LONGEST_S
    while len(cpu_us) < rounds and (time.monotonic() < end or len(cpu_us) < 2):
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        refused = is_refused(data)
        cpu_us.append((time.thread_time_ns() - cpu) / 1000)
        wall_us.append((time.perf_counter_ns() - wall) / 1000)
    return {
        "bytes": len(data),
        "refused": refused,
        "probes": len(cpu_us),
        "cpu_us": spread(cpu_us),
        "wall_us": spread(wall_us),
    }


def refused_by_probe(data: bytes) -> bool:
    try:
        probe(data)
    except ProteusError:
        return True
    return False


def refused_by_pillow(data: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(data)) as picture:
            picture.getexif().get(0x0112)
            getattr(picture, "n_frames", 1)
    except Exception:  # it raises anything at all
        return True
    return False


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 1),
        "p99": round(statistics.quantiles(values, n=100, method="inclusive")[98], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--pillow", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    pillow_heif.register_heif_opener()
    is_refused = refused_by_pillow if arguments.pillow else refused_by_probe
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    groups = {"ordinary": ordinary, "at_the_cap": at_the_cap, "animated": animated, "hostile": hostile}
    results: dict[str, dict[str, Any]] = {}
    for group, files in groups.items():
        results[group] = {name: measure(data, arguments.rounds, is_refused) for name, data in files()}
        for name, row in results[group].items():
            print(f"{name:36}{row['bytes']:>12,} bytes  p99 {row['cpu_us']['p99']:>10,.1f} us of CPU", flush=True)
    report = {
        "command": f"python -m perf.probe --rounds {arguments.rounds}" + " --pillow" * arguments.pillow,
        "load_average_1min": round(os.getloadavg()[0], 1),
        "versions": {"python": platform.python_version(), "pillow": PIL.__version__},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, pinned to one",
        **results,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
