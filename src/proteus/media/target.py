"""A client's URL, or a host's redirect, to where the fetcher may go: scheme, host and port are in the contract.

Whether the host's addresses may be dialled is not decided here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

from proteus.errors import FetchFailed
from proteus.limits import FetchLimits

DEFAULT_PORTS = {"https": 443, "http": 80}
MAX_URL_CHARS = 2048
FORBIDDEN = re.compile(r"[^\x21-\x7e]|\\|%0[0ad]", re.IGNORECASE)
NAME = re.compile(r"[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63})*")
NUMBER = re.compile(r"(.*\.)?([0-9]+|0x[0-9a-f]*)")  # as inet_aton reads it: 127.1, 2130706433, 0x7f.1
SEND_BYTES = "send the picture's bytes instead"


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that passed the contract."""

    scheme: str
    host: str  # ASCII, lower case, no trailing dot
    port: int
    path: str  # with the query, without the fragment

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}{self.path}"


def check_url(url: str, limits: FetchLimits) -> Target:
    """The parts of `url`; raises FetchFailed unless scheme, host and port are allowed and nothing odd is in it."""
    if len(url) > MAX_URL_CHARS:
        raise FetchFailed("the URL is too long", limit=f"{MAX_URL_CHARS:,} characters", fix="send a shorter URL")
    if FORBIDDEN.search(url):
        raise FetchFailed(
            "the URL holds characters that it may not hold",
            limit="ASCII without blanks, control characters and backslashes",
            fix="percent-encode its path, write its host in punycode",
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise FetchFailed("the URL cannot be read", fix="write it like https://host/path") from error
    if parts.scheme not in limits.schemes:
        raise _not_allowed("scheme", "schemes", limits.schemes)
    if "@" in parts.netloc:
        raise FetchFailed("the URL carries a name or a password", fix="send a URL without")
    host = (parts.hostname or "").removesuffix(".")
    if not NAME.fullmatch(host) or NUMBER.fullmatch(host):
        raise FetchFailed("the URL's host is no name", limit="a name, not an address", fix=SEND_BYTES)
    if not any(_matches(host, pattern) for pattern in limits.hosts):
        raise _not_allowed("host", "hosts", limits.hosts)
    port = DEFAULT_PORTS[parts.scheme] if port is None else port
    if port not in limits.ports:
        raise _not_allowed("port", "ports", map(str, limits.ports))
    return Target(parts.scheme, host, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


def redirected(target: Target, place: str, limits: FetchLimits) -> Target:
    """Where the Location `place` leads from `target`; raises FetchFailed as for a first URL, or if it gives up TLS."""
    try:
        url = urljoin(target.url, place)
    except ValueError:
        url = ""  # is refused below
    try:
        after = check_url(place if FORBIDDEN.search(place) else url, limits)  # urljoin drops some of those
    except FetchFailed as error:
        raise error.about("after a redirect") from error
    if target.scheme == "https" and after.scheme != "https":
        raise FetchFailed("the URL leads from https to http", fix=SEND_BYTES)
    return after


def _matches(host: str, pattern: str) -> bool:
    """ "*.example.com" is any name below example.com, not example.com itself."""
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def _not_allowed(what: str, key: str, allowed: Iterable[str]) -> FetchFailed:
    return FetchFailed(
        f"the URL's {what} is not allowed", limit=f"[fetch] {key} = {', '.join(allowed)}", fix=SEND_BYTES
    )
