"""Pixels from the processor cache, or else from the pool that decodes; what was decoded without error is kept."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from proteus.cache.figures import ProcessorCacheFigures
from proteus.cache.key import PixelRules, ProcessorKeyFields, media_digest, processor_key
from proteus.cache.store import Store
from proteus.deployment import Deployment
from proteus.families.llava import LlavaFamily
from proteus.limits_cache import MediaCache
from proteus.preprocess.pool import DecodePool, Pixels
from proteus.preprocess.rules import pixel_rules
from proteus.preprocess.wire import Size

LEAST_SAVED_US: Final = 1  # of a hit: 0 says that there was none


@dataclass(frozen=True, slots=True)
class Started:
    """One picture."""

    pixels: Future[Pixels]  # (3, S, S), read-only where they are kept
    saved_us: int = 0  # 0: they are computed; else what computing them had taken


class KeptPixels:
    """Safe to use from several threads. Closes the pool it is given."""

    def __init__(self, pool: DecodePool, limits: MediaCache, rules: PixelRules) -> None:
        self._pool, self._rules = pool, rules
        self._lock = threading.Lock()
        self._store = Store[ProcessorKeyFields, Pixels](
            max_bytes=limits.max_bytes, max_age_s=limits.max_age_s, digest=processor_key
        )

    @classmethod
    def from_deployment(cls, deployment: Deployment) -> KeptPixels:
        """Starts the pool's workers; raises Unavailable when one does not start."""
        rules = pixel_rules(deployment.image, LlavaFamily.from_checkpoint(deployment.checkpoint_path).resize)
        return cls(DecodePool(deployment), deployment.processor_cache, rules)

    def start(self, data: bytes, target_px: Size | None, scope_key: bytes) -> Started:
        """As `DecodePool.submit`, for who may see what is kept under `scope_key`. The picture is known by its bytes."""
        if not self._store.is_on:
            return Started(self._pool.submit(data, target_px))
        key = ProcessorKeyFields(
            scope_key=scope_key, media_digest=media_digest(data), target_px=target_px, pixels=self._rules
        )
        with self._lock:
            kept = self._store.find(key)
        if kept is None:
            return Started(self._pool.submit(data, target_px, lambda pixels, took_s: self._keep(key, pixels, took_s)))
        found: Future[Pixels] = Future()
        found.set_result(kept.value)
        return Started(found, max(LEAST_SAVED_US, round(kept.cost_s * 1e6)))

    def figures(self) -> ProcessorCacheFigures:
        """What the cache did; asked now and then, what is too old is dropped."""
        with self._lock:
            self._store.drop_expired()
            return ProcessorCacheFigures(store=self._store.figures())

    def close(self) -> None:
        """End every worker."""
        self._pool.close()

    def _keep(self, key: ProcessorKeyFields, pixels: Pixels, took_s: float) -> None:
        pixels.setflags(write=False)
        with self._lock:
            self._store.keep(key, pixels, pixels.nbytes, cost_s=took_s)
