"""The encoder path: `image_tokens` through Triton, saturated, every picture new, against the bare loop."""

from __future__ import annotations

import asyncio
import io
import secrets
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc.aio
import numpy as np
from PIL import Image
from tritonclient.grpc import service_pb2, service_pb2_grpc

from perf.peers.rounds import median_ratio
from perf.side.bare import BareLoops, Rate
from perf.side.cpu import cpu_s
from perf.side.ours import Ours
from proteus.client.channel import CHANNEL_OPTIONS
from proteus.contract import IMAGE_BYTES, IMAGE_TOKENS, SCOPE_KEY, TARGET_PX

AT_ONCE = 32  # four batches of the encoder: one at work in each stage, one waiting
DISTINCT = 16
SCOPE_KEY_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One kind of picture, as an application sends it."""

    record: str
    width_px: int
    height_px: int

    @property
    def megapixels(self) -> str:
        return f"{self.width_px * self.height_px / 1e6:.2g} MP"


SIZES = (
    Size(record="encoder_path", width_px=1600, height_px=1200),
    Size(record="encoder_path/0.26MP", width_px=512, height_px=512),
    Size(record="encoder_path/0.79MP", width_px=1024, height_px=768),
)


@dataclass
class EncoderRounds:
    """Round by round."""

    ours: list[Rate] = field(default_factory=list)
    bare: list[Rate] = field(default_factory=list)
    graphs: list[Rate] = field(default_factory=list)  # without any preprocessing

    @property
    def ratio(self) -> float:
        return median_ratio([rate.per_s for rate in self.ours], [rate.per_s for rate in self.bare])


def photographs(size: Size) -> list[bytes]:
    """JPEG files with detail everywhere: what a decoder has most work with."""
    rng = np.random.default_rng(size.width_px)
    files = []
    for _ in range(DISTINCT):
        small = rng.integers(0, 256, (size.height_px // 8, size.width_px // 8, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(small).resize((size.width_px, size.height_px)).save(file, "jpeg", quality=85)
        files.append(file.getvalue())
    return files


def measure(server: Ours, loops: BareLoops, pictures: Sequence[bytes], seconds: float, rounds: int) -> EncoderRounds:
    """Ours and the limit by turns; the first round warms up."""
    done = EncoderRounds()
    for round_ in range(rounds + 1):
        ours, bare = saturated(server, pictures, seconds), loops.rate("whole", seconds)
        graphs = loops.rate("graphs", seconds / 4)
        if round_ > 0:
            done.ours.append(ours)
            done.bare.append(bare)
            done.graphs.append(graphs)
    return done


def saturated(server: Ours, pictures: Sequence[bytes], seconds: float) -> Rate:
    """CPU is that of the server and all its models, not of the clients."""
    start_s, start_cpu_s = time.perf_counter(), cpu_s(server.pid)
    done = asyncio.run(saturate(server.url, pictures, seconds))
    return Rate(per_s=done / (time.perf_counter() - start_s), cpu_ms=(cpu_s(server.pid) - start_cpu_s) / done * 1e3)


async def saturate(url: str, pictures: Sequence[bytes], seconds: float) -> int:
    """Pictures done, so many at once for so long; a cache scope of its own makes each one new to every cache."""
    done, until_s = 0, time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal done
        while time.perf_counter() < until_s:
            await stub.ModelInfer(request(pictures[number % len(pictures)]))
            done, number = done + 1, number + 1

    async with grpc.aio.insecure_channel(url, options=CHANNEL_OPTIONS) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        async with asyncio.TaskGroup() as group:
            for first in range(AT_ONCE):
                group.create_task(client(first))
    return done


def request(picture: bytes) -> service_pb2.ModelInferRequest:
    made = service_pb2.ModelInferRequest(model_name=IMAGE_TOKENS.name)
    tensors = (
        (IMAGE_BYTES, len(picture), picture),
        (SCOPE_KEY, SCOPE_KEY_BYTES, secrets.token_bytes(SCOPE_KEY_BYTES)),
        (TARGET_PX, 2, struct.pack("<2i", 0, 0)),
    )
    for tensor, size, raw in tensors:
        made.inputs.add(name=tensor.name, datatype=tensor.dtype, shape=[1, size])
        made.raw_input_contents.append(raw)
    return made
