"""Admission of requests that draw: queues and tables of their own."""

from __future__ import annotations

import pytest

from proteus.errors import MediaTooLarge, QueueFull
from proteus.limits import ClassQueue, DrawAdmission, DrawQueues, Resources
from tests.admission.asks import Desk, is_held, release

QUEUE = ClassQueue(max_queue=1, weight=1)


def desk_of(capacity: Resources, request: Resources | None = None) -> Desk:
    return Desk(
        DrawAdmission(
            capacity=capacity,
            request=request or Resources(),
            queues=DrawQueues(media=QUEUE, batch=QUEUE),
            max_open_bytes=1,
            max_wait_ms=1_000,
        )
    )


@pytest.mark.parametrize(
    ("amounts", "words"),
    [
        ({"images": 9}, r"images = 9; limit: \[draw.admission.capacity\] images = 8; fix: ask for fewer pictures"),
        ({"evaluations": 401}, r"limit: \[draw.admission.request\] evaluations = 400; fix: .*fewer steps.*guidance"),
        ({"token_passes": 6}, r"limit: \[draw.admission.request\] token_passes = 5; fix: .*smaller pictures"),
    ],
)
def test_what_can_never_be_drawn_is_told_its_table_and_what_to_ask_for(amounts: dict[str, int], words: str) -> None:
    desk = desk_of(Resources(images=8), Resources(evaluations=400, token_passes=5))
    with pytest.raises(MediaTooLarge, match=words):
        desk.submit(**amounts)


def test_pictures_wait_for_those_before_them_and_a_full_queue_names_its_table() -> None:
    desk = desk_of(Resources(images=8))
    first, second = desk.submit(images=6), desk.submit(images=6)
    assert is_held(first) and second.waiting
    with pytest.raises(QueueFull, match=r"limit: \[draw.admission.queues\] media.max_queue = 1"):
        desk.submit(images=6)
    release(first)
    assert is_held(second)
    assert desk.admission.snapshot().queued == {"media": 0, "batch": 0}
    assert dict(desk.admission.snapshot().held)["images"] == 6


def test_whoever_waited_too_long_is_told_the_limit() -> None:
    desk = desk_of(Resources(images=1))
    desk.submit(images=1)
    late = desk.submit(images=1)
    desk.clock.now_s += 1.0
    desk.admission.advance()
    assert "limit: [draw.admission] max_wait_ms = 1,000" in str(late.error)
