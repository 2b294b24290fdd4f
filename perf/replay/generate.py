"""Profile -> trace: the same profile, seconds and seed give the same. Each session has a random source of its own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from random import Random
from typing import Any

from pydantic import ValidationError

from perf.replay.arrivals import MAX_SESSIONS, session_begins
from perf.replay.profile import MAX_SECONDS, BadProfile, Pictures, Profile
from perf.replay.spreads import pick, whole
from perf.replay.trace import (
    MAX_PICTURES,
    ChatArrival,
    DrawArrival,
    Header,
    LatencyClass,
    Modality,
    Request,
    Trace,
    TracedPicture,
)

SEED_BITS = 48
MAX_REQUESTS = MAX_SESSIONS


def generate(profile: Profile, *, seconds: float | None = None, seed: int = 1) -> Trace:
    """What arrives in `seconds`, else in the profile's own; a session that is not over by then is cut.

    Raises BadProfile where that is too much, or what no trace holds.
    """
    seconds = seconds or profile.seconds
    if seconds > MAX_SECONDS:
        raise BadProfile(f"{seconds:,.0f} s are more than {MAX_SECONDS:,.0f}, a day: ask for fewer")
    begins_s = session_begins(profile.arrivals, seconds, Random(f"{seed}/arrivals"))
    requests: list[Request] = []
    for number, begin_s in enumerate(begins_s):
        session = Session(profile, number, Random(f"{seed}/session/{number}"))
        in_time = itertools.takewhile(lambda request: request.arrival_s < seconds, _told(profile, session, begin_s))
        requests += itertools.islice(in_time, MAX_REQUESTS + 1 - len(requests))
        if max(len(begins_s), len(requests)) > MAX_REQUESTS:
            most = f"more than {MAX_REQUESTS:,} requests in {seconds:g} s"
            raise BadProfile(f"profile {profile.name} makes {most}: lower sessions_per_s, turns or seconds")
    requests.sort(key=lambda request: (request.arrival_s, request.session))
    objectives = {name: one.objective for name, one in profile.classes.items()}
    header = Header(profile=profile.name, seed=seed, seconds=seconds, requests=len(requests), objectives=objectives)
    return Trace(header=header, requests=requests)


def _told(profile: Profile, session: Session, begin_s: float) -> Iterator[Request]:
    try:
        yield from session.requests(begin_s)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "pictures"
        raise BadProfile(
            f"profile {profile.name} makes a request that no trace holds: {where}: {first['msg']}"
        ) from None


class Session:
    """One person: a modality, a tenant and a class, and the pictures that were shown so far."""

    def __init__(self, profile: Profile, number: int, rng: Random) -> None:
        self._profile, self._number, self._rng = profile, number, rng
        self._modality: Modality = pick(profile.modalities, rng)
        self._tenant = pick(profile.tenants, rng)
        self._class: LatencyClass = pick({name: one.share for name, one in profile.classes.items()}, rng)
        self._shown: list[TracedPicture] = []

    def requests(self, begin_s: float) -> Iterator[Request]:
        """One for each turn."""
        now_s = begin_s
        for turn in range(whole(self._profile.sessions.turns, self._rng)):
            if turn:
                now_s += max(0.0, self._profile.sessions.think_s.draw(self._rng))
            yield self._draw(now_s) if self._modality == "draw" else self._chat(now_s)

    def _chat(self, now_s: float) -> ChatArrival:
        text = self._profile.text
        return ChatArrival(
            **self._asked(now_s),
            n=pick(text.n, self._rng),
            pictures=self._pictures(),
            text_tokens=whole(text.prompt_tokens, self._rng),
            max_tokens=whole(text.output_tokens, self._rng),
        )

    def _draw(self, now_s: float) -> DrawArrival:
        draw = self._profile.draw
        if draw is None:
            raise ValueError("a profile that draws has a table [draw]")
        return DrawArrival(
            **self._asked(now_s),
            n=pick(draw.n, self._rng),
            size=pick(draw.sizes, self._rng),
            steps=pick(draw.steps, self._rng),
            guidance=pick(draw.guidance, self._rng),
        )

    def _asked(self, now_s: float) -> dict[str, Any]:
        cancels, of_class = self._profile.cancels, self._profile.classes[self._class]
        leaves = self._rng.random() < cancels.share
        return {
            "arrival_s": round(now_s, 6),
            "session": self._number,
            "tenant": self._tenant,
            "cache_scope": self._tenant,
            "latency_class": self._class,
            "deadline_ms": of_class.deadline_ms,
            "cancel_after_s": max(1e-3, round(cancels.after_s.draw(self._rng), 3)) if leaves else None,
            "text_seed": self._rng.getrandbits(SEED_BITS),
        }

    def _pictures(self) -> tuple[TracedPicture, ...]:
        """All different; some of them may have been shown in an earlier turn."""
        pictures = self._profile.pictures
        if self._modality == "text" or pictures is None:
            return ()
        number = 1 if self._modality == "image" else min(MAX_PICTURES + 1, max(2, whole(pictures.number, self._rng)))
        known = self._rng.sample(self._shown, len(self._shown))
        chosen = []
        for _ in range(number):
            again = bool(known) and self._rng.random() < self._profile.sessions.repeat
            chosen.append(known.pop() if again else self._new(pictures))
        self._shown += [picture for picture in chosen if picture not in self._shown]
        return tuple(chosen)

    def _new(self, pictures: Pictures) -> TracedPicture:
        rng = self._rng
        ratio = pictures.max_aspect_ratio ** rng.uniform(-1, 1)
        height = math.sqrt(max(1.0, pictures.pixels.draw(rng)) / ratio)
        return TracedPicture(
            seed=rng.getrandbits(SEED_BITS),
            width_px=max(1, round(height * ratio)),
            height_px=max(1, round(height)),
            format=pick(pictures.formats, rng),
            tier=pick(pictures.tiers, rng),
        )
