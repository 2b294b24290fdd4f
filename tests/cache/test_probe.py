"""Ten thousand tries at the store itself, every digest a collision; and whether the probe of a server sees a hit."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from perf.cache_probe import CACHES, Findings, miscounted, records, wilson
from perf.cache_ways import WAYS, Hits, look_alikes, mark, near_keys
from proteus.cache.key import PictureKeyFields, ProcessorKeyFields, scope_key, whole
from proteus.cache.store import Store
from tests.cache.test_key import PICTURE, PIXELS

SCOPE = "Scopé 7 of a tenant"
TRIES = 10_000
REPORT: dict[str, Any] = {
    "usage": {"cached_tokens": 0},
    "pictures": ["encoded"],
    "caches": {
        "processor": {"lookups": 1, "hits": 0},
        "encoder": {"lookups": 1, "hits": 0},
        "prefix": {"lookups": 1, "hits": 0},
    },
}


def colliding_store() -> Store[Any, str]:
    """The worst that a digest can be."""
    return Store(max_bytes=100, max_age_s=60.0, digest=lambda key: b"the same")


def forged(victim: PictureKeyFields, chance: random.Random) -> PictureKeyFields:
    """All that the victim's request was, but for the scope; sometimes fields that say its scope in another place."""
    scope = chance.choice([*look_alikes(SCOPE), f"attacker {chance.random()}"])
    bucket = chance.choice((victim.bucket, f"{SCOPE}{victim.bucket}", SCOPE))
    digest = chance.choice((victim.media_digest, SCOPE.encode() + victim.media_digest, chance.randbytes(32)))
    return replace(victim, scope_key=scope_key(scope), bucket=bucket, media_digest=digest)


def test_ten_thousand_forged_keys_find_nothing_where_every_digest_collides() -> None:
    victim = replace(PICTURE, scope_key=scope_key(SCOPE))
    store, chance = colliding_store(), random.Random(0)
    store.keep(victim, "secret", 1, cost_s=1.0)
    for _ in range(TRIES):
        key = forged(victim, chance)
        assert store.find(key) is None
        assert whole(key) != whole(victim)
    figures = store.figures()
    assert (figures.lookups, figures.hits, figures.collisions) == (TRIES, 0, TRIES)
    kept = store.find(replace(victim))
    assert kept is not None and kept.value == "secret"


def test_ten_thousand_near_scope_keys_find_no_pixels() -> None:
    victim = replace(PIXELS, scope_key=scope_key(SCOPE))
    store, chance = colliding_store(), random.Random(0)
    store.keep(victim, "pixels", 1, cost_s=1.0)
    tried = 0
    while tried < TRIES:
        for key in near_keys(SCOPE, chance):
            other: ProcessorKeyFields = replace(victim, scope_key=key)
            assert store.find(other) is None
            tried += 1
    assert store.find(replace(victim)) is not None


@pytest.mark.parametrize("scope", [SCOPE, "a", "tenant", "Größe 3"])
def test_what_looks_like_a_scope_is_another(scope: str) -> None:
    others = look_alikes(scope)
    assert scope not in others
    assert len(others) == len(set(others)) > 20
    assert scope_key(scope) not in {scope_key(one) for one in others}
    assert scope_key(scope) not in near_keys(scope, random.Random(1))
    assert all(len(key) == 32 for key in near_keys(scope, random.Random(1)))


def test_marks_are_of_one_length_and_ways_have_names_of_their_own() -> None:
    assert {len(mark(name)) for name in ("a", "secret 1", "shape 9999")} == {64}
    assert len({way.__name__ for way in WAYS}) == len(WAYS)


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({}, Hits()),
        ({"pictures": ["cached"]}, Hits(encoder=1)),
        ({"pictures": ["shared"]}, Hits(encoder=1)),
        ({"usage": {"cached_tokens": 16}}, Hits(prefix=16)),
        ({"caches": {**REPORT["caches"], "processor": {"hits": 1}}}, Hits(processor=1)),
        ({"caches": {**REPORT["caches"], "encoder": {"hits": 2}}}, Hits(encoder=2)),
        ({"caches": {**REPORT["caches"], "prefix": {"hits": 1}}}, Hits(prefix=1)),
    ],
)
def test_every_hit_that_an_answer_tells_is_seen(change: dict[str, Any], seen: Hits) -> None:
    hits = Hits.of({**REPORT, **change})
    assert hits == seen
    assert hits.any == bool(change)
    assert not Hits(refused=True).any


@pytest.mark.parametrize(
    ("counted", "complaints"),
    [
        ({"processor": 3, "encoder": 4, "prefix": 5}, 0),
        ({"processor": 3, "encoder": 4, "prefix": 7}, 0),  # several answers to one request share its own prompt
        ({"processor": 3, "encoder": 4, "prefix": 8}, 1),
        ({"processor": 4, "encoder": 5, "prefix": 5}, 2),
        ({"processor": 2, "encoder": 4, "prefix": 5}, 1),
    ],
)
def test_hits_that_nobody_was_told_of_are_complained_of(counted: dict[str, float], complaints: int) -> None:
    findings = Findings(tries=Counter({"several_answers": 2, "same_bytes": 9}))
    findings.control.update({"processor": 3, "encoder": 4, "prefix": 5})
    assert len(list(miscounted(findings, counted))) == complaints


def test_records_tell_tries_ways_and_the_interval_of_the_timing() -> None:
    findings = Findings(tries=Counter({"same_bytes": 60, "victims_tenant": 40}), seen=["try 7"])
    findings.control.update(dict.fromkeys(CACHES, 5))
    found, timing = records(findings, [True, False] * 50, [True] * 100, "python -m perf.cache_probe")
    assert (found.name, found.value, found.baseline) == ("found", 1, 100)
    assert (timing.name, timing.value, timing.ratio) == ("timing", 0.5, 1.0)
    assert "0.404 to 0.596" in timing.note
    assert findings.complaints == ["try 7"]


def test_an_interval_holds_its_share_and_shrinks() -> None:
    assert wilson(0, 50)[0] == pytest.approx(0.0, abs=1e-9)
    assert wilson(50, 50)[1] == pytest.approx(1.0)
    few, many = wilson(5, 10), wilson(500, 1000)
    assert few[0] < many[0] < 0.5 < many[1] < few[1]
