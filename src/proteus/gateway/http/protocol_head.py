"""What is wrong with the head of a request that the parser let pass: forms that two servers may read in two ways."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

Headers = Sequence[tuple[bytes, bytes]]
VERSIONS = ("1.0", "1.1")
MAX_TARGET_BYTES = 2_048
MAX_HEADERS = 100
HOST = re.compile(rb"[A-Za-z0-9._-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?")
ONCE = frozenset(
    (
        b"host",
        b"authorization",
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"transfer-encoding",
        b"origin",
        b"expect",
    )
)
NO_PATH = re.compile(rb"[\x00-\x20\x7f\\]|(^|/)\.\.?(/|$)")


def why_bad(version: str, target: bytes, headers: Headers) -> str | None:
    """None for a good one."""
    if version not in VERSIONS:
        return "the HTTP version is not served"
    return _why_bad_target(target) or _why_bad_headers(version, headers)


def _why_bad_target(target: bytes) -> str | None:
    if len(target) > MAX_TARGET_BYTES:
        return f"the request target is longer than {MAX_TARGET_BYTES:,} bytes"
    if not target.startswith(b"/"):
        return "the request target is no path"
    if b"#" in target or NO_PATH.search(unquote_to_bytes(target.partition(b"?")[0])):
        return "the path has dots, backslashes or control characters"
    return None


def _why_bad_headers(version: str, headers: Headers) -> str | None:
    if len(headers) > MAX_HEADERS:
        return f"there are more than {MAX_HEADERS} headers"
    seen = Counter(name for name, _ in headers if name in ONCE)
    twice = next((name for name, count in seen.items() if count > 1), None)
    if twice is not None:
        return f"the header {twice.decode()} stands there twice"
    values = {name: value for name, value in headers if name in seen}
    if b"host" not in values and version == "1.1":
        return "there is no Host header"
    if b"host" in values and not HOST.fullmatch(values[b"host"]):
        return "the Host header is no name"
    coding = values.get(b"transfer-encoding")
    if coding is not None and (coding.lower() != b"chunked" or version == "1.0"):
        return "the transfer coding is not served"
    if values.get(b"expect", b"100-continue").lower() != b"100-continue":
        return "the expectation is not served"
    return None
