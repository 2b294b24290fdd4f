"""Pictures of a request to visual tokens: each distinct one once, from the encoder cache where it has them.

Picture → key → encoder cache | computation under way | image_tokens → VisualTokens
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from proteus.backend.fleet import Context, Fleet
from proteus.cache.key import PictureKeyFields, picture_key, scope_key
from proteus.cache.single_flight import SingleFlight
from proteus.cache.store import Store, StoreFigures
from proteus.contract import VISUAL_TOKENS
from proteus.cost.planner import MediaCost
from proteus.door.calls import VisualTokens
from proteus.door.pictures import Picture
from proteus.door.prepare import Prepared
from proteus.door.together import together
from proteus.errors import InvalidRequest, MediaTooLarge
from proteus.limits_cache import EncoderCache
from proteus.preprocess.pixels import POLICY

Place = tuple[bytes, tuple[int, int] | None]  # digest of a picture and the size it is given as: what is encoded once


class Encoding:
    """For one event loop; `revision` names the weights of encoder and connector."""

    def __init__(self, fleet: Fleet, limits: EncoderCache, *, revision: str) -> None:
        self._fleet, self._revision = fleet, revision
        self._under_way = SingleFlight[bytes, VisualTokens](shared_errors=(InvalidRequest, MediaTooLarge))
        self._store = Store[PictureKeyFields, VisualTokens](
            max_bytes=limits.max_bytes, max_age_s=limits.max_age_s, digest=picture_key
        )

    def figures(self) -> StoreFigures:
        self._store.drop_expired()
        return self._store.figures()

    async def encode(self, prepared: Prepared, context: Context) -> Mapping[Place, VisualTokens]:
        """Visual tokens of each distinct picture, all at once; the first that is refused ends the others."""
        distinct: dict[Place, tuple[int, Picture, MediaCost]] = {}
        for number, (picture, cost) in enumerate(planned(prepared), start=1):
            distinct.setdefault(place(picture, cost), (number, picture, cost))
        scope = prepared.request.cache_scope
        tokens = await together(self._named(*named, scope, context) for named in distinct.values())
        return dict(zip(distinct, tokens, strict=True))

    async def _named(
        self, number: int, picture: Picture, cost: MediaCost, cache_scope: str, context: Context
    ) -> VisualTokens:
        """A picture that is to blame is named by its number, as it was where its header was read."""
        try:
            return await self._found_or_made(picture, cost, cache_scope, context)
        except (InvalidRequest, MediaTooLarge) as error:
            raise error.about(f"picture {number}") from error

    async def _found_or_made(
        self, picture: Picture, cost: MediaCost, cache_scope: str, context: Context
    ) -> VisualTokens:
        fields = PictureKeyFields(
            cache_scope=cache_scope,
            revision=self._revision,
            policy=POLICY,
            plan=f"{cost.bucket.label}, {cost.given_px} px, {cost.plan.visual_tokens} visual tokens",
            dtype=VISUAL_TOKENS.dtype,
            media_digest=picture.digest,
        )
        kept = self._store.find(fields)
        if kept is not None:
            return replace(kept.value, source="cached", marks=None, saved_ms=kept.cost_s * 1e3)
        target_px = cost.given_px if cost.downscaled else None
        landing = await self._under_way.run(
            picture_key(fields), lambda: self._made(picture.data, target_px, fields, context)
        )
        return replace(landing.value, source="shared") if landing.shared else landing.value

    async def _made(
        self, data: bytes, target_px: tuple[int, int] | None, fields: PictureKeyFields, context: Context
    ) -> VisualTokens:
        begun_ns = time.monotonic_ns()
        encoded = await self._fleet.image_tokens(data, scope_key(fields.cache_scope), context, target_px)
        landed_ns = time.monotonic_ns()
        tokens = VisualTokens(
            rows=encoded.visual_tokens,
            source="encoded",
            key=picture_key(fields),
            marks=encoded.marks,
            landed_ns=landed_ns,
            preprocess_saved_ms=encoded.preprocess_saved_us / 1e3,
        )
        self._store.keep(fields, tokens, tokens.rows.nbytes, cost_s=(landed_ns - begun_ns) / 1e9)
        return tokens


def planned(prepared: Prepared) -> Iterator[tuple[Picture, MediaCost]]:
    """Every picture of the prompt with its cost."""
    return zip(prepared.pictures, prepared.costs, strict=True)


def place(picture: Picture, cost: MediaCost) -> Place:
    return picture.digest, cost.given_px
