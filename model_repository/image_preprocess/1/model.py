"""Bytes of a picture in, `pixel_values` out: kept ones, or decoded by processes of their own (`proteus.preprocess`)."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from proteus.backend.guard import answer_each
from proteus.backend.metrics import Metrics, Telling
from proteus.backend.startup import be_nicer, load_deployment, nice_of
from proteus.backend.tensors import Array, read
from proteus.cache.figures import PROCESSOR_CACHE_FIGURES
from proteus.preprocess.kept import KeptPixels, Started


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        be_nicer(nice_of(args))
        self.pictures = KeptPixels.from_deployment(load_deployment(args))
        self.telling = Telling(Metrics(PROCESSOR_CACHE_FIGURES, adds_up=True), self.pictures.figures)

    def execute(self, requests: list[Any]) -> list[Any]:
        begun_ns = time.monotonic_ns()
        started = {id(request): self.start(request) for request in requests}
        return answer_each(requests, lambda request: self.answer(started[id(request)], begun_ns))

    def finalize(self) -> None:
        self.telling.close()
        self.pictures.close()

    def start(self, request: Any) -> list[Started]:
        """One for each picture: (1, bytes), more rows when a client batches pictures of equal length."""
        given = (read(request, tensor) for tensor in ("image_bytes", "target_px", "scope_key"))
        return [
            self.pictures.start(data.tobytes(), (int(width), int(height)) if width else None, scope_key.tobytes())
            for data, (width, height), scope_key in zip(*given, strict=True)
        ]

    def answer(self, started: list[Started], begun_ns: int) -> dict[str, Array]:
        pixels = np.stack([picture.pixels.result() for picture in started])
        return {
            "pixel_values": pixels,
            "preprocess_ns": np.full((len(started), 2), (begun_ns, time.monotonic_ns())),
            "preprocess_saved_us": np.array([[picture.saved_us] for picture in started], dtype=np.int64),
        }
