#!/usr/bin/env python3
"""A check of contents for the gateway, over HTTP, with the standard library alone: docs/moderation.md is its contract.

    python client/moderation_example.py --refuse violence=kill,bomb --blur-above 1000x1000 --port 9000

It refuses prompts and answers that hold a word of a list, under the list's category, and blurs pictures that are larger
than a size, as a stand-in for a model that looks for faces. In the deployment file of the gateway:

    [gateway.moderation]
    url = "http://127.0.0.1:9000/check"
    before = true
    after = true
    timeout_ms = 2_000
    on_failure = "refuse"
    max_at_once = 16
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VERSION = 1
MAX_BYTES = 64 << 20


def verdict_on(
    subject: Mapping[str, Any], refused: Mapping[str, Sequence[str]], blur_above: tuple[int, int] | None
) -> dict[str, Any]:
    """The whole of the check: allow, refuse with a category, or blur some of the pictures."""
    words = set(re.findall(r"\w+", " ".join(subject["texts"]).lower()))
    for category, those in refused.items():
        if words & set(those):
            return {"verdict": "refuse", "category": category}
    if blur_above is not None:
        large = [
            index
            for index, picture in enumerate(subject["pictures"])
            if picture["width_px"] > blur_above[0] or picture["height_px"] > blur_above[1]
        ]
        if large:
            return {"verdict": "blur", "pictures": large, "category": "large"}
    return {"verdict": "allow"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # the gateway keeps its connections
    disable_nagle_algorithm = True  # head and body are two writes: the second would wait 40 ms for the first's receipt
    refused: Mapping[str, Sequence[str]] = {}
    blur_above: tuple[int, int] | None = None

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        if length > MAX_BYTES:
            return self._answer(413, {"error": f"at most {MAX_BYTES} bytes"})
        subject = json.loads(self.rfile.read(length))
        if subject["version"] != VERSION:
            return self._answer(400, {"error": f"version is {VERSION}"})
        return self._answer(200, verdict_on(subject, self.refused, self.blur_above))

    def _answer(self, status: int, document: Mapping[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: what is checked does not belong into a log."""


def of_list(text: str) -> tuple[str, list[str]]:
    """`violence=kill,bomb`."""
    category, _, words = text.partition("=")
    return category, words.lower().split(",")


def of_size(text: str) -> tuple[int, int]:
    """`1000x1000`."""
    width, _, height = text.partition("x")
    return int(width), int(height)


def server(port: int, refused: Mapping[str, Sequence[str]], blur_above: tuple[int, int] | None) -> ThreadingHTTPServer:
    """On this machine alone; port 0 takes a free one."""
    rules = type("Rules", (Handler,), {"refused": refused, "blur_above": blur_above})
    return ThreadingHTTPServer(("127.0.0.1", port), rules)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--refuse", action="append", type=of_list, default=[], metavar="CATEGORY=WORD,WORD")
    parser.add_argument("--blur-above", type=of_size, metavar="WIDTHxHEIGHT")
    parser.add_argument("--port", type=int, default=9000)
    args = parser.parse_args()
    with server(args.port, dict(args.refuse), args.blur_above) as running:
        print(f"checks at http://127.0.0.1:{running.server_port}/check", flush=True)
        running.serve_forever()


if __name__ == "__main__":
    main()
