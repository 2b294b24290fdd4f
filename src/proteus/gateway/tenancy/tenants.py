"""Whose request it is, by its API key. The file of tenants is read again when it changes."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from proteus.deployment import Deployment, DeploymentError
from proteus.gateway.errors import ExpiredKey, InvalidKey
from proteus.gateway.order import Tenant
from proteus.gateway.tenancy.tenants_file import KEY, Keys, digest_of, keys_of, read_tenants

LOCAL = Tenant(name="local", cache_scope="local")  # everybody's, where no keys are asked for
BEARER = re.compile(rb"(?i:bearer) (%s)" % KEY.pattern)
LOOK_EACH_S = 1.0
FIX = "send the header Authorization: Bearer pk-…, with a key that `proteus keys new` printed"
Seen = tuple[int, ...]  # of a file, by which a change is told
log = logging.getLogger(__name__)


class Tenants:
    """Without a file, everybody is the one tenant `local`. Raises DeploymentError where the file cannot be used."""

    def __init__(self, path: Path | None = None, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._path, self._now = path, now
        self._keys: Keys = {}
        self._seen: Seen | None = None
        self._watching: asyncio.Task[None] | None = None
        self._bad_keys = self._broken = self._reads = 0
        if path is not None:
            self._seen = _seen(path)
            self._read(path)

    @property
    def asks_for_keys(self) -> bool:
        return self._path is not None

    def of(self, authorization: bytes) -> Tenant:
        """Raises InvalidKey, or ExpiredKey."""
        if self._path is None:
            return LOCAL
        if not authorization:
            raise InvalidKey("there is no API key", fix=FIX)
        found = BEARER.fullmatch(authorization)
        key = None if found is None else self._keys.get(digest_of(found[1]))
        if key is None:
            self._bad_keys += 1
            raise InvalidKey("the API key is not known" if found else "the header holds no API key of ours", fix=FIX)
        if key.until is not None and key.until <= self._now():
            self._bad_keys += 1
            raise ExpiredKey(
                f"the API key {key.tenant.key} has expired",
                limit=f"{key.until:%Y-%m-%d %H:%M} UTC",
                fix="use a newer key",
            )
        return key.tenant

    async def start(self) -> None:
        if self._path is not None:
            self._watching = asyncio.create_task(self._watch(self._path), name="tenants")

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
            self._watching = None

    def look(self) -> None:
        """Takes in a file that has changed; one that cannot be used is told once and changes nothing."""
        if self._path is None or (seen := _seen(self._path)) == self._seen:
            return
        self._seen = seen
        try:
            self._read(self._path)
        except DeploymentError as error:
            self._broken = 1
            log.error("the tenants stay as they were: %s", error)
        except Exception:  # or no key could be taken away any more
            self._broken = 1
            log.exception("the tenants stay as they were: %s cannot be used", self._path)
        else:
            log.warning("read %s again: %d keys", self._path, len(self._keys))

    def figures(self) -> Mapping[str, float]:
        return {
            "bad_keys": self._bad_keys,
            "keys": len(self._keys),
            "file_broken": self._broken,
            "file_reads": self._reads,
        }

    def _read(self, path: Path) -> None:
        self._keys = keys_of(read_tenants(path))
        self._broken = 0
        self._reads += 1

    async def _watch(self, path: Path) -> None:
        while True:
            await asyncio.sleep(LOOK_EACH_S)
            await asyncio.to_thread(self.look)


def tenants_path(deployment: Deployment) -> Path | None:
    """None where nobody is asked for a key."""
    settings = deployment.gateway
    if settings is None or settings.tenants is None:
        return None
    return deployment.path.parent / settings.tenants


def _seen(path: Path) -> Seen | None:
    """None where there is no file now."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_dev
