"""The rule of `auto`, as docs/gateway.md states it: kind of question, sizes, price; never chance."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from export.world.questions import WORDINGS
from proteus.door.request import ChatRequest
from proteus.gateway.planning.auto import KINDS, UNKNOWN, Choice, Kind, choices, kind_of
from proteus.gateway.planning.auto_reader import names_tier
from proteus.limits_gateway import AutoRule

RULE = AutoRule(light_max_pixels=65_536, low_max_pixels=262_144, max_price=0.0)
AUTO_MAX_PIXELS = 4_000_000
COLOUR = next(kind for kind in KINDS if kind.says == "asks for a colour")
READ = next(kind for kind in KINDS if kind.says == "asks to read")
SMALL_PX, MIDDLE_PX, LARGE_PX, HUGE_PX = (120, 90), (500, 500), (1536, 1536), (4000, 3000)


def asked(*texts: str) -> ChatRequest:
    return ChatRequest.model_validate({"messages": [{"role": "user", "content": text} for text in texts]})


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ("What number is written?", "asks to read"),
        ("READ THE NUMBER.", "asks to read"),
        ("What does the sign say?", "asks to read"),
        ("How high is the red bar?", "asks about a chart"),
        ("What colour is the tallest bar?", "asks about a chart"),
        ("What is the small shape?", "asks about something small"),
        ("How many shapes are there?", "asks to count"),
        ("Count them.", "asks to count"),
        ("What colour is the square?", "asks for a colour"),
        ("Which color is at the top?", "asks for a colour"),
        ("What shape is red?", "asks for a shape"),
        ("Where is the circle?", "asks for a place"),
        ("Which picture has a circle?", "asks for a place"),
        ("Is there a circle?", "asks yes or no"),
        ("Describe it.", "asks to describe"),
        ("What is this?", "asks to describe"),
        ("Is there small text?", "asks to read"),
        ("Welche Farbe hat der Kreis?", UNKNOWN.says),
        ("", UNKNOWN.says),
        ("bread, spreadsheet, accounts", UNKNOWN.says),
    ],
)
def test_a_question_is_of_one_kind_by_its_words(question: str, says: str) -> None:
    assert kind_of(asked(question)).says == says


def test_only_the_last_question_counts() -> None:
    assert kind_of(asked("Read the number.", "What colour is it?")) is COLOUR
    assert kind_of(asked("Read the number. " + "x " * 2_000 + "What colour is it?")) is COLOUR


NEEDS = {"small": "fine", "count": "fine", "count of": "fine", "read": "fine", "value": "fine", "tallest": "fine"}


@pytest.mark.parametrize("kind", sorted(WORDINGS))
def test_every_kind_of_the_drawn_world_is_known(kind: str) -> None:
    for phrase in WORDINGS[kind]:
        found = kind_of(asked(phrase.format("red circle", "top")))
        assert (found is UNKNOWN, found.need) == (False, NEEDS.get(kind, "coarse")), phrase


@pytest.mark.parametrize(
    ("kind", "sizes_px", "has_light", "first"),
    [
        (UNKNOWN, [], True, (True, None)),
        (UNKNOWN, [], False, (False, None)),
        (COLOUR, [SMALL_PX], True, (True, "low")),
        (COLOUR, [SMALL_PX], False, (False, "low")),
        (COLOUR, [MIDDLE_PX], True, (False, "low")),
        (COLOUR, [LARGE_PX], True, (False, "auto")),
        (COLOUR, [SMALL_PX, SMALL_PX], True, (True, "low")),
        (COLOUR, [(256, 256), (256, 256)], True, (False, "low")),
        (COLOUR, [SMALL_PX, LARGE_PX], True, (False, "auto")),
        (READ, [SMALL_PX], True, (False, "auto")),
        (READ, [LARGE_PX], True, (False, "auto")),
        (READ, [HUGE_PX], True, (False, "high")),
        (UNKNOWN, [SMALL_PX], True, (False, "auto")),
        (UNKNOWN, [HUGE_PX], True, (False, "auto")),
    ],
)
def test_kind_and_sizes_choose_model_and_tier(
    kind: Kind, sizes_px: Sequence[tuple[int, int]], has_light: bool, first: tuple[bool, str | None]
) -> None:
    choice = chosen(kind, sizes_px, sizes_px, has_light=has_light)[0]
    assert (choice.light, choice.tier) == first


def chosen(
    kind: Kind, sizes_px: Sequence[tuple[int, int]], free_px: Sequence[tuple[int, int]], *, has_light: bool
) -> list[Choice]:
    return list(choices(kind, sizes_px, free_px, RULE, auto_max_pixels=AUTO_MAX_PIXELS, has_light=has_light))


def test_a_tier_that_is_named_is_kept_but_its_picture_counts_for_the_model() -> None:
    assert [choice.tier for choice in chosen(COLOUR, [SMALL_PX], [], has_light=False)] == [None]
    assert not chosen(COLOUR, [LARGE_PX], [], has_light=True)[0].light


def test_what_is_too_dear_goes_down_in_tier_and_then_in_model() -> None:
    ways = chosen(READ, [HUGE_PX], [HUGE_PX], has_light=True)
    assert [(way.light, way.tier) for way in ways] == [(False, "high"), (False, "auto"), (False, "low"), (True, "low")]


def test_the_full_model_stands_behind_the_light_one() -> None:
    ways = chosen(COLOUR, [SMALL_PX], [SMALL_PX], has_light=True)
    assert [(way.light, way.tier) for way in ways] == [(True, "low"), (False, "low")]


def test_the_reason_tells_kind_and_size_and_nothing_of_the_text() -> None:
    assert chosen(COLOUR, [SMALL_PX], [SMALL_PX], has_light=False)[0].because == "asks for a colour; 120x90 px"
    assert chosen(READ, [SMALL_PX, LARGE_PX], [], has_light=False)[0].because == (
        "asks to read; 2 pictures of 2,370,096 px"
    )
    assert chosen(READ, [], [], has_light=True)[0].because == "no picture"


def test_the_rule_has_no_chance_in_it() -> None:
    draw = random.Random(8)
    for _ in range(200):
        kind = draw.choice((*KINDS, UNKNOWN))
        sizes_px = [(draw.randint(8, 5000), draw.randint(8, 5000)) for _ in range(draw.randint(0, 4))]
        first = chosen(kind, sizes_px, sizes_px, has_light=True)
        assert first == chosen(kind, sizes_px, sizes_px, has_light=True)


def test_which_pictures_name_a_tier_is_told_part_by_part() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "image_url", "image_url": {"url": "data:,", "detail": "auto"}},
        {"type": "text", "text": "and"},
        {"type": "image", "data": "AAAA", "detail": "low"},
        {"type": "image", "data": "AAAA"},
    ]
    request = ChatRequest.model_validate({"messages": [{"role": "user", "content": parts}]})
    assert names_tier(request) == (False, True, True, False)
