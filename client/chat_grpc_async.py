#!/usr/bin/env python3
"""Ask several questions about one picture at once, over gRPC streaming in asyncio, with tritonclient and numpy alone.

    python client/chat_grpc_async.py client/pictures/chart.png "How high is the green bar?" "Which bar is the tallest?"

The server encodes the picture once for all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient


def build_inputs(picture: bytes, question: str) -> list[InferInput]:
    """The request document, and the picture's bytes with their length."""
    content = [{"type": "image"}, {"type": "text", "text": question}]
    document = {"messages": [{"role": "user", "content": content}], "max_tokens": 32}
    return [
        tensor("request", "BYTES", np.array([json.dumps(document).encode()], dtype=np.object_)),
        tensor("image_bytes", "UINT8", np.frombuffer(picture, dtype=np.uint8)),
        tensor("image_lengths", "INT64", np.array([len(picture)], dtype=np.int64)),
    ]


def tensor(name: str, datatype: str, values: np.ndarray) -> InferInput:
    made = InferInput(name, list(values.shape), datatype)
    made.set_data_from_numpy(values)
    return made


async def ask(client: InferenceServerClient, picture: bytes, question: str) -> tuple[str, dict[str, Any]]:
    """The text and the report of one answer; each ask has a stream of its own."""

    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "chat", "inputs": build_inputs(picture, question)}

    text, report = "", None
    async for result, error in client.stream_infer(requests()):
        if error is not None:
            raise SystemExit(str(error))
        text += result.as_numpy("text")[0].decode()
        last = result.as_numpy("report")
        if last is not None and last.size:
            report = json.loads(last[0])
    if report is None:
        raise SystemExit("the stream ended before the answer was complete")
    return text, report


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("questions", nargs="+")
    parser.add_argument("--url", default="127.0.0.1:8001")
    args = parser.parse_args()

    async with InferenceServerClient(args.url) as client:
        picture = args.picture.read_bytes()
        answers = await asyncio.gather(*(ask(client, picture, question) for question in args.questions))
    for question, (text, report) in zip(args.questions, answers, strict=True):
        print(f"{question} {text}  {report['usage']}")


if __name__ == "__main__":
    asyncio.run(main())
