"""The check before anything is encoded and after it is made: allow, refuse, or blur a picture. docs/moderation.md.

Equal pictures of a request are shown once. A check that fails refuses or allows, as [gateway.moderation] on_failure
says; that there are too many at once refuses, whatever it says.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points

from proteus.client.drawing import Drawn
from proteus.deployment import Deployment, DeploymentError
from proteus.door.pictures import Picture
from proteus.errors import QueueFull, Unavailable
from proteus.gateway.errors import ContentRefused
from proteus.gateway.moderation.blur import Blurring
from proteus.gateway.moderation.endpoint import HttpCheck
from proteus.gateway.moderation.subject import Check, CheckFailed, Shown, Subject, Verdict, When, believed
from proteus.gateway.moderation.windows import Held
from proteus.gateway.order import Visit
from proteus.limits_gateway import Moderation as Settings

GROUP = "proteus.moderation"  # of entry points
STAGES: Mapping[When, str] = {"before": "moderation", "after": "moderation_after"}
# What may come of a check, the worst last; of several checks of a request, the worst is told.
OUTCOMES = ("allow", "unchecked", "blur", "failed", "refuse")
log = logging.getLogger(__name__)


class Moderation:
    """For one event loop; without settings nothing is checked. Raises DeploymentError."""

    def __init__(self, deployment: Deployment, settings: Settings | None) -> None:
        self._settings = settings
        self._check = None if settings is None else _check_of(settings)
        self._blurring = Blurring(deployment)
        self._free = asyncio.Semaphore(1 if settings is None else settings.max_at_once)
        self._counts: Counter[tuple[str, When]] = Counter()

    @property
    def is_before(self) -> bool:
        return self._settings is not None and self._settings.before

    @property
    def is_after(self) -> bool:
        return self._settings is not None and self._settings.after

    def figures(self) -> Mapping[tuple[str, When], int]:
        """Checks by what came of them and when they took place."""
        return dict(self._counts)

    async def close(self) -> None:
        if isinstance(self._check, HttpCheck):
            await self._check.close()
        await self._blurring.close()

    async def before(self, visit: Visit, texts: Sequence[str], pictures: Sequence[Picture] = ()) -> dict[int, bytes]:
        """The bytes that take the place of pictures, by their index.

        Raises ContentRefused, Unavailable, QueueFull, or what is wrong with a picture that is to be blurred.
        """
        if not self.is_before:
            return {}
        first: dict[bytes, Picture] = {}  # of equal ones
        for picture in pictures:
            first.setdefault(picture.digest, picture)
        distinct = tuple(first.values())
        with visit.watch.stage(STAGES["before"]):
            blurred = await self._asked(visit, "before", texts, [_shown(picture) for picture in distinct])
            files = {
                distinct[index].digest: await self._blurring.of_upload(distinct[index].data, distinct[index].header)
                for index in sorted(blurred)
            }
        return {index: files[picture.digest] for index, picture in enumerate(pictures) if picture.digest in files}

    async def after_text(self, visit: Visit, *texts: str) -> None:
        """Raises ContentRefused, Unavailable or QueueFull."""
        if self.is_after:
            with visit.watch.stage(STAGES["after"]):
                await self._asked(visit, "after", texts, ())

    async def after_picture(self, visit: Visit, picture: Drawn) -> bytes:
        """Its bytes, or those that take their place. Raises ContentRefused, Unavailable or QueueFull."""
        if not self.is_after:
            return picture.data
        shown = Shown(
            data=picture.data,
            digest=hashlib.sha256(picture.data).hexdigest(),
            format=picture.format,
            width_px=picture.width_px,
            height_px=picture.height_px,
        )
        with visit.watch.stage(STAGES["after"]):
            blurred = await self._asked(visit, "after", (), [shown])
            return await self._blurring.of_drawn(picture) if blurred else picture.data

    def held(self, visit: Visit) -> Held | None:
        """For the pieces of a stream; None where they may leave at once."""
        return Held(lambda text: self.after_text(visit, text)) if self.is_after else None

    async def _asked(self, visit: Visit, when: When, texts: Sequence[str], pictures: Sequence[Shown]) -> frozenset[int]:
        """The pictures that are to be blurred, of those shown."""
        subject = Subject(
            when=when,
            tenant=visit.whose.name,
            request_id=visit.request_id,
            texts=tuple(texts),
            pictures=tuple(pictures),
        )
        verdict = await self._verdict(visit, subject)
        if verdict is None:
            self._note(visit, when, "unchecked", "")
            return frozenset()
        outcome = "refuse" if verdict.refused else "blur" if verdict.blurred else "allow"
        self._note(visit, when, outcome, verdict.category)
        if verdict.refused:
            what = "the prompt or a picture" if when == "before" else "what was made"
            raise ContentRefused(
                f"{what} is refused: {verdict.category}",
                limit="[gateway.moderation], the operator's check of contents",
                fix="ask for something else",
            )
        return verdict.blurred

    async def _verdict(self, visit: Visit, subject: Subject) -> Verdict | None:
        """None where the check failed and that is allowed."""
        settings, check = self._settings, self._check
        if settings is None or check is None:
            return Verdict()
        await self._place(settings)
        try:
            async with asyncio.timeout(settings.timeout_ms / 1e3):
                return believed(await check.check(subject), subject)
        except Exception as error:
            reason = str(error) if isinstance(error, CheckFailed) else type(error).__name__
            log.warning(
                "request %s: the check %s gave no verdict, on_failure = %s: %s",
                visit.request_id,
                subject.when,
                settings.on_failure,
                reason,
            )
            if settings.on_failure == "allow":
                return None
            self._note(visit, subject.when, "failed", "")
            raise Unavailable("the check of contents gave no verdict", fix="try again in some seconds") from error
        finally:
            self._free.release()

    async def _place(self, settings: Settings) -> None:
        try:
            async with asyncio.timeout(settings.timeout_ms / 1e3):
                await self._free.acquire()
        except TimeoutError as error:
            raise QueueFull(
                f"{settings.max_at_once:,} checks of contents are under way",
                limit=f"[gateway.moderation] max_at_once = {settings.max_at_once:,}",
            ) from error

    def _note(self, visit: Visit, when: When, outcome: str, category: str) -> None:
        self._counts[outcome, when] += 1
        told = visit.checks.get(when)
        if told is None or OUTCOMES.index(outcome) > OUTCOMES.index(told["verdict"]):
            visit.checks[when] = {"verdict": outcome, **({"category": category} if category else {})}
        visit.moderation = ",".join(_words(when, told) for when, told in visit.checks.items() if _is_told(told))


def _is_told(told: Mapping[str, str]) -> bool:
    return told["verdict"] != "allow"


def _words(when: str, told: Mapping[str, str]) -> str:
    return ":".join((when, *told.values()))


def _shown(picture: Picture) -> Shown:
    width_px, height_px = picture.header.upright_px
    return Shown(
        data=picture.data,
        digest=picture.digest.hex(),
        format=picture.header.format,
        width_px=width_px,
        height_px=height_px,
    )


def _check_of(settings: Settings) -> Check:
    if settings.url:
        return HttpCheck(settings)
    found = entry_points(group=GROUP, name=settings.entry_point)
    if not found:
        known = ", ".join(sorted(one.name for one in entry_points(group=GROUP))) or "none"
        raise DeploymentError(
            f'[gateway.moderation] entry_point = "{settings.entry_point}" is not installed; there are: {known}',
            fix=f"install the package that has it in the group {GROUP}, or give url",
        )
    try:
        check: Check = next(iter(found)).load()()
    except Exception as error:
        raise DeploymentError(
            f'[gateway.moderation] entry_point = "{settings.entry_point}" cannot be made: {type(error).__name__}',
            fix="it names a class that is made without arguments",
        ) from error
    return check
