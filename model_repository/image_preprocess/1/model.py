"""Bytes of a picture in, `pixel_values` out; decoded by processes of their own (`proteus.preprocess.pool`)."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

import numpy as np

from proteus.backend.guard import answer_each
from proteus.backend.startup import be_nicer, load_deployment, nice_of
from proteus.backend.tensors import Array, read
from proteus.preprocess.pool import DecodePool


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        be_nicer(nice_of(args))
        self.pool = DecodePool(load_deployment(args))

    def execute(self, requests: list[Any]) -> list[Any]:
        begun_ns = time.monotonic_ns()
        started = {id(request): self.start(request) for request in requests}
        return answer_each(requests, lambda request: self.answer(started[id(request)], begun_ns))

    def finalize(self) -> None:
        self.pool.close()

    def start(self, request: Any) -> list[Future[Array]]:
        """A future for each picture: (1, bytes), more rows when a client batches pictures of equal length."""
        rows = zip(read(request, "image_bytes"), read(request, "target_px").tolist(), strict=True)
        return [self.pool.submit(data.tobytes(), (width, height) if width else None) for data, (width, height) in rows]

    def answer(self, started: list[Future[Array]], begun_ns: int) -> dict[str, Array]:
        pixels = np.stack([future.result() for future in started])
        num = len(started)
        return {
            "pixel_values": pixels,
            "preprocess_ns": np.full((num, 2), (begun_ns, time.monotonic_ns())),
            "preprocess_saved_us": np.zeros((num, 1), dtype=np.int64),
        }
