#!/usr/bin/env python3
"""Ask about pictures over gRPC streaming, with tritonclient and numpy alone.

    python client/chat_grpc.py client/pictures/chart.png "Which bar is the tallest?" [--url 127.0.0.1:8001]

The answer's text comes piece by piece; the last event carries a JSON report with usage and stage times.
"""

from __future__ import annotations

import argparse
import json
import queue
from pathlib import Path

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput


def build_inputs(pictures: list[bytes], question: str) -> list[InferInput]:
    """The request document, and the pictures' bytes one after the other with the length of each."""
    content = [{"type": "image"} for _ in pictures] + [{"type": "text", "text": question}]
    document = {"messages": [{"role": "user", "content": content}], "max_tokens": 32}
    inputs = [tensor("request", "BYTES", np.array([json.dumps(document).encode()], dtype=np.object_))]
    if pictures:
        inputs.append(tensor("image_bytes", "UINT8", np.frombuffer(b"".join(pictures), dtype=np.uint8)))
        inputs.append(tensor("image_lengths", "INT64", np.array([len(p) for p in pictures], dtype=np.int64)))
    return inputs


def tensor(name: str, datatype: str, values: np.ndarray) -> InferInput:
    made = InferInput(name, list(values.shape), datatype)
    made.set_data_from_numpy(values)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", nargs="*", type=Path)
    parser.add_argument("question")
    parser.add_argument("--url", default="127.0.0.1:8001")
    args = parser.parse_args()

    events: queue.Queue = queue.Queue()
    with InferenceServerClient(args.url) as client:
        client.start_stream(callback=lambda result, error: events.put((result, error)))
        client.async_stream_infer("chat", build_inputs([p.read_bytes() for p in args.pictures], args.question))
        report = None
        while report is None:
            result, error = events.get()
            if error is not None:
                raise SystemExit(str(error))
            print(result.as_numpy("text")[0].decode(), end="", flush=True)
            last = result.as_numpy("report")
            if last is not None and last.size:
                report = json.loads(last[0])
        client.stop_stream()
    print()
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
