#!/usr/bin/env python3
"""Have pictures drawn over gRPC streaming, with tritonclient and numpy alone.

    python client/draw.py "a red circle at the top left on a white background" --n 2 --out drawing.png

Pictures come as each is done, previews before them; the last event carries a JSON report with usage and stage times.
Ctrl-C ends the stream, and the server stops drawing.
"""

from __future__ import annotations

import argparse
import json
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput, InferResult


def build_input(args: argparse.Namespace) -> InferInput:
    """The request document. A field that is left out takes the server's default."""
    options = {"n": args.n, "seed": args.seed, "steps": args.steps, "guidance": args.guidance, "size": args.size}
    document = {name: value for name, value in options.items() if value is not None}
    document |= {"prompt": args.prompt, "format": "png", "preview_every": 5}
    request = InferInput("request", [1], "BYTES")
    request.set_data_from_numpy(np.array([json.dumps(document).encode()], dtype=np.object_))
    return request


def events(client: InferenceServerClient, request: InferInput) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Every event with the bytes of its picture; the report is the last and has none."""
    arrived: queue.Queue = queue.Queue()
    client.start_stream(callback=lambda result, error: arrived.put((result, error)))
    try:
        client.async_stream_infer("draw", [request])
        while True:
            result, error = arrived.get()
            if error is not None:
                raise SystemExit(str(error))
            if report := text_of(result, "report"):
                yield {"kind": "report", **json.loads(report)}, b""
                return
            image = result.as_numpy("image")
            yield json.loads(text_of(result, "event") or "{}"), b"" if image is None else image.tobytes()
    finally:
        client.stop_stream(cancel_requests=True)


def text_of(result: InferResult, name: str) -> str:
    values = result.as_numpy(name)
    return "" if values is None or not values.size else values[0].decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt")
    parser.add_argument("--n", type=int, help="pictures")
    parser.add_argument("--seed", type=int, help="draws the same again")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--guidance", type=float)
    parser.add_argument("--size", help="such as 64x64")
    parser.add_argument("--out", type=Path, default=Path("drawing.png"), help="the second picture is drawing-1.png …")
    parser.add_argument("--url", default="127.0.0.1:8001")
    args = parser.parse_args()

    with InferenceServerClient(args.url) as client:
        for event, image in events(client, build_input(args)):
            kind, index = event.pop("kind", ""), event.get("index", 0)
            if kind == "preview":
                print(f"picture {index}: step {event['step']} of {event['steps']}, preview of {len(image)} bytes")
            elif kind == "image":
                file = args.out.with_stem(f"{args.out.stem}-{index}") if index else args.out
                file.write_bytes(image)
                print(f"{file}: {json.dumps(event['settings'])}")
            elif kind == "report":
                print(json.dumps(event, indent=2))


if __name__ == "__main__":
    main()
