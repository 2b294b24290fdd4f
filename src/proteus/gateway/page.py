"""The page at /: its files, read once when the gateway starts; nothing else of the disk can be asked for."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from proteus.gateway.errors import NotFound, error_body

FOLDER = Path(__file__).with_name("page")
INDEX = "index.html"
KINDS: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
# Only what the page itself is made of; pictures are those a visitor chose (blob:) or had drawn (data:).
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    kind: str  # its media type
    body: bytes
    packed: bytes  # the same, gzipped
    etag: str


class Page:
    """Raises OSError where the installation lacks its files."""

    def __init__(self) -> None:
        self._files = {path.name: _read(path) for path in sorted(FOLDER.iterdir()) if path.suffix in KINDS}

    def answer(self, request: Request, name: str = INDEX) -> Response:
        """A file of the page, asked for again when it has changed only."""
        file = self._files.get(name)
        if file is None:
            body = error_body(NotFound("the page has no such file", fix="open / instead"))
            return Response(body, status_code=404, media_type="application/json")
        headers = {
            "etag": file.etag,
            "cache-control": "no-cache",  # kept, and asked for again each time: a new version is seen at once
            "vary": "accept-encoding",
            "content-security-policy": POLICY,
        }
        if file.etag in (one.strip() for one in request.headers.get("if-none-match", "").split(",")):
            return Response(status_code=304, headers=headers)
        if not _takes_gzip(request):
            return Response(file.body, headers=headers, media_type=file.kind)
        return Response(file.packed, headers=headers | {"content-encoding": "gzip"}, media_type=file.kind)


def _read(path: Path) -> File:
    body = path.read_bytes()
    return File(
        kind=KINDS[path.suffix],
        body=body,
        packed=gzip.compress(body, mtime=0),
        etag=f'W/"{hashlib.sha256(body).hexdigest()[:32]}"',  # weak: packed or not, it is the same
    )


def _takes_gzip(request: Request) -> bool:
    encodings = request.headers.get("accept-encoding", "").lower().split(",")
    return any(one.strip() in ("gzip", "*") for one in encodings)
