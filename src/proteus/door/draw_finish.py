"""Latents to files: decoded by the VAE, or by a linear map for previews, and encoded in threads."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from proteus.backend.fleet import Context, DrawFleet
from proteus.door.arrival import in_thread
from proteus.door.draw_figures import DrawCounts
from proteus.door.draw_plan import DrawPlan
from proteus.generation.encode import encode
from proteus.generation.preview import LinearPreview, Pixels
from proteus.generation.task import Floats, Settings
from proteus.manifest import DrawManifest


class Finishing:
    """Of one door."""

    def __init__(self, fleet: DrawFleet, manifest: DrawManifest, counts: DrawCounts, *, threads: int) -> None:
        self._fleet, self._counts = fleet, counts
        self._linear = LinearPreview(manifest.preview)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="encode")

    async def pixels(self, latent: Floats, context: Context) -> Pixels:
        return await self._fleet.decode(latent, context)

    async def file(self, pixels: Pixels, plan: DrawPlan, settings: Settings) -> bytes:
        """With the recipe inside."""
        return await in_thread(self._threads, lambda: _file(pixels, plan, plan.recipe(settings)))

    async def preview(self, clean: Floats, plan: DrawPlan, context: Context) -> bytes:
        """The file of a preview, without a recipe: no settings make it."""
        begun_s = time.monotonic()
        try:
            if plan.request.preview_by == "decoder":
                pixels = await self._fleet.decode(clean, context)
                return await in_thread(self._threads, lambda: _file(pixels, plan))
            return await in_thread(self._threads, lambda: self._linear_file(clean, plan))
        finally:
            self._counts.preview_s[plan.request.preview_by] += time.monotonic() - begun_s

    def _linear_file(self, clean: Floats, plan: DrawPlan) -> bytes:
        wish = plan.wish
        return _file(self._linear(clean, width_px=wish.width_px, height_px=wish.height_px), plan)


def _file(pixels: Pixels, plan: DrawPlan, recipe: Mapping[str, Any] | None = None) -> bytes:
    return encode(pixels, plan.wish.format, quality=plan.wish.quality, settings=recipe)
