"""Pictures of a request to visual tokens: each distinct one once, from the encoder cache where it has them.

Picture → key → encoder cache | computation under way | Redis | image_tokens → VisualTokens
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from proteus.backend.fleet import Context, Fleet
from proteus.cache.figures import EncoderCacheFigures
from proteus.cache.key import EncoderVersion, PictureKeyFields, PixelRules, picture_key, scope_key, whole
from proteus.cache.shared import SharedCache
from proteus.cache.single_flight import SingleFlight
from proteus.cache.store import Store
from proteus.contract import CONNECTOR, VISION_ENCODER, VISUAL_TOKENS
from proteus.cost.planner import MediaCost
from proteus.deployment import Deployment
from proteus.door.calls import VisualTokens
from proteus.door.pictures import Picture
from proteus.door.prepare import Prepared
from proteus.door.together import together
from proteus.errors import InternalError, InvalidRequest, MediaTooLarge
from proteus.families.llava import LlavaFamily
from proteus.limits_cache import EncoderCache
from proteus.manifest import Manifest
from proteus.preprocess.rules import pixel_rules

Place = tuple[bytes, tuple[int, int] | None]  # digest of a picture and the size it is given as: what is encoded once


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """What the visual tokens of every picture depend on."""

    pixels: PixelRules
    encoder: EncoderVersion
    width: int  # D

    @classmethod
    def of(cls, deployment: Deployment, manifest: Manifest, family: LlavaFamily) -> Versions:
        """Reads the files that encoder and connector run; with an encoder pool, those that are here."""
        repository = deployment.repository_path
        folders = [repository / model.name / "1" for model in (VISION_ENCODER, CONNECTOR)]
        if deployment.encoder_pool is not None:
            folders = [folder for folder in folders if folder.is_dir()]
        encoder = EncoderVersion(
            revision=manifest.revision, graphs=_digest(folders), runtime=_runtime(), dtype=VISUAL_TOKENS.dtype
        )
        return cls(pixels=pixel_rules(deployment.image, family.resize), encoder=encoder, width=manifest.hidden_size)

    def encoder_named(self, name: str) -> EncoderVersion:
        """That of the encoder which the fleet gives this name."""
        return replace(self.encoder, runtime=name) if name else self.encoder


class Encoding:
    """For one event loop."""

    def __init__(self, fleet: Fleet, limits: EncoderCache, *, versions: Versions) -> None:
        """Raises DeploymentError where the secret of the shared store is not set."""
        self._fleet, self._versions = fleet, versions
        self._under_way = SingleFlight[PictureKeyFields, VisualTokens](shared_errors=(InvalidRequest, MediaTooLarge))
        self._store = Store[PictureKeyFields, VisualTokens](
            max_bytes=limits.max_bytes, max_age_s=limits.max_age_s, digest=picture_key
        )
        self._shared = SharedCache(limits.redis) if limits.redis is not None and self._store.is_on else None

    def figures(self) -> EncoderCacheFigures:
        """What the encoder cache did; asked now and then, what is too old is dropped."""
        self._store.drop_expired()
        return EncoderCacheFigures(
            store=self._store.figures(), shared=None if self._shared is None else self._shared.figures()
        )

    def close(self) -> None:
        """After the last request, from another thread than the event loop's."""
        if self._shared is not None:
            self._shared.close()

    async def encode(self, prepared: Prepared, context: Context) -> Mapping[Place, VisualTokens]:
        """Visual tokens of each distinct picture, all at once; the first that is refused ends the others."""
        distinct: dict[Place, tuple[int, Picture, MediaCost]] = {}
        for number, (picture, cost) in enumerate(planned(prepared), start=1):
            distinct.setdefault(place(picture, cost), (number, picture, cost))
        scope = scope_key(prepared.request.cache_scope)
        tokens = await together(self._named(*named, scope, context) for named in distinct.values())
        return dict(zip(distinct, tokens, strict=True))

    async def _named(
        self, number: int, picture: Picture, cost: MediaCost, scope: bytes, context: Context
    ) -> VisualTokens:
        """A picture that is to blame is named by its number, as it was where its header was read."""
        try:
            return await self._found_or_made(picture, cost, scope, context)
        except (InvalidRequest, MediaTooLarge) as error:
            raise error.about(f"picture {number}") from error

    async def _found_or_made(self, picture: Picture, cost: MediaCost, scope: bytes, context: Context) -> VisualTokens:
        key = PictureKeyFields(
            scope_key=scope,
            media_digest=picture.digest,
            given_px=cost.given_px,
            bucket=cost.bucket.label,
            visual_tokens=cost.plan.visual_tokens,
            pixels=self._versions.pixels,
            encoder=self._versions.encoder_named(await self._fleet.encoder()),
        )
        kept = self._store.find(key) if self._store.is_on else None
        if kept is not None:
            return replace(kept.value, source="cached", marks=None, saved_ms=kept.cost_s * 1e3)
        target_px = cost.given_px if cost.downscaled else None
        landing = await self._under_way.run(key, lambda: self._shared_or_made(picture.data, target_px, key, context))
        return replace(landing.value, source="shared") if landing.shared else landing.value

    async def _shared_or_made(
        self, data: bytes, target_px: tuple[int, int] | None, key: PictureKeyFields, context: Context
    ) -> VisualTokens:
        shape = key.visual_tokens, self._versions.width
        found = None if self._shared is None else await self._shared.find(whole(key), shape)
        if found is None:
            return await self._made(data, target_px, key, context)
        tokens = VisualTokens(rows=found.rows, source="cached", key=picture_key(key), saved_ms=found.cost_s * 1e3)
        self._store.keep(key, tokens, tokens.rows.nbytes, cost_s=found.cost_s, age_s=found.age_s)
        return tokens

    async def _made(
        self, data: bytes, target_px: tuple[int, int] | None, key: PictureKeyFields, context: Context
    ) -> VisualTokens:
        """Kept as what its encoder made it, which may be another one than it was looked for of."""
        begun_ns = time.monotonic_ns()
        encoded = await self._fleet.image_tokens(data, key.scope_key, context, target_px)
        landed_ns = time.monotonic_ns()
        cost_s = (landed_ns - begun_ns) / 1e9
        rows = encoded.visual_tokens
        if len(rows) != key.visual_tokens:  # kept, they would fail every later request too
            raise InternalError
        rows.setflags(write=False)
        key = replace(key, encoder=self._versions.encoder_named(encoded.encoder))
        tokens = VisualTokens(
            rows=rows,
            source="encoded",
            key=picture_key(key),
            marks=encoded.marks,
            landed_ns=landed_ns,
            preprocess_saved_ms=encoded.preprocess_saved_us / 1e3,
        )
        self._store.keep(key, tokens, rows.nbytes, cost_s=cost_s)
        if self._shared is not None:
            self._shared.keep(whole(key), rows, cost_s)
        return tokens


def planned(prepared: Prepared) -> Iterator[tuple[Picture, MediaCost]]:
    """Every picture of the prompt with its cost."""
    return zip(prepared.pictures, prepared.costs, strict=True)


def place(picture: Picture, cost: MediaCost) -> Place:
    return picture.digest, cost.given_px


def _digest(folders: list[Path]) -> str:
    """SHA-256, hex, over names and bytes of all files in them."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.iterdir() if path.is_file()):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256")
        digest.update(f"{path.parent.parent.name}/{path.name} {content.hexdigest()}\n".encode())
    return digest.hexdigest()


def _runtime() -> str:
    """ONNX Runtime as our own backend runs it; a native one is known by its processor alone."""
    try:
        return f"onnxruntime {version('onnxruntime')} on {platform.machine()}"
    except PackageNotFoundError:
        return f"native on {platform.machine()}"
