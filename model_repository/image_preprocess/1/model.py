"""Bytes of a picture in, `pixel_values` out; the work is in `proteus.preprocess`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from proteus.backend.guard import answer_each
from proteus.backend.startup import load_deployment
from proteus.backend.tensors import Array, read
from proteus.preprocess.picture import Preprocess


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.preprocess = Preprocess.from_deployment(load_deployment(args))

    def execute(self, requests: list[Any]) -> list[Any]:
        return answer_each(requests, self.answer)

    def answer(self, request: Any) -> dict[str, Array]:
        rows = read(request, "image_bytes")  # (1, bytes); more rows when a client batches pictures of equal length
        pixel_values = np.stack([self.preprocess(row.tobytes()) for row in rows])
        return {
            "pixel_values": pixel_values,
            "cache_key_echo": read(request, "cache_key"),
            "made_at_ns": np.full((len(rows), 1), time.monotonic_ns()),
        }
