from __future__ import annotations

from collections import Counter

import pytest

from proteus.cost.vector import ResourceVector
from proteus.errors import DeadlineExceeded, MediaTooLarge, QueueFull
from proteus.limits import LatencyClass, Resources
from tests.admission.asks import CLASSES, Desk, ask_of, is_held, limits_of, release

ONE_AT_A_TIME = Resources(requests=1)
PIXELS = Resources(requests=10, decoded_pixels=100)


def desk_of(capacity: Resources, **options: object) -> Desk:
    return Desk(limits_of(capacity, **options))  # type: ignore[arg-type]


def test_what_fits_starts_at_once_and_the_rest_when_it_is_released() -> None:
    desk = desk_of(ONE_AT_A_TIME)
    first, second = desk.submit(requests=1), desk.submit(requests=1)
    assert is_held(first) and second.waiting
    release(first)
    assert is_held(second) and not second.waiting
    assert desk.admission.ledger.held == ResourceVector(requests=1)


def test_room_for_more_servers_serves_more_and_what_is_held_stays_when_there_are_fewer() -> None:
    desk = desk_of(PIXELS)
    first, second, third = (desk.submit(decoded_pixels=60) for _ in range(3))
    text = desk.submit("text", requests=1)
    assert [second.waiting, third.waiting, text.waiting] == [True, True, False]
    desk.admission.resize(2)
    assert is_held(second) and is_held(third)
    desk.admission.resize(1)
    assert is_held(third) and is_held(desk.submit("text", requests=1))
    late = desk.submit(decoded_pixels=60)
    for ticket in (first, second):
        release(ticket)
        assert late.waiting
    release(third)
    assert is_held(late)


def test_a_request_must_fit_one_server_of_several() -> None:
    desk = desk_of(PIXELS)
    desk.admission.resize(3)
    with pytest.raises(MediaTooLarge, match="decoded_pixels = 100"):
        desk.submit(decoded_pixels=101)


def test_what_is_over_the_limit_of_a_request_is_refused_whatever_is_free() -> None:
    desk = desk_of(Resources(), request=Resources(frames=8))
    with pytest.raises(MediaTooLarge, match=r"frames = 9; limit: \[admission.request\] frames = 8"):
        desk.submit(frames=9)


def test_what_can_never_fit_is_refused_at_the_door_and_never_queued() -> None:
    desk = desk_of(PIXELS)
    desk.submit(requests=1, decoded_pixels=60)
    with pytest.raises(MediaTooLarge, match=r"= 101; limit: \[admission.capacity\] decoded_pixels = 100"):
        desk.submit(requests=1, decoded_pixels=101)
    assert desk.admission.snapshot().queued == {"text": 0, "media": 0, "batch": 0}


def test_many_small_items_are_judged_by_what_they_cost_and_not_by_their_bytes() -> None:
    """Case 25: 33 pictures of 7,200 tokens each in 12 MB."""
    desk = desk_of(Resources(visual_tokens=131_072, media_bytes=10**9))
    with pytest.raises(MediaTooLarge, match="visual_tokens = 237,600"):
        desk.submit(items=33, media_bytes=11_900_000, visual_tokens=33 * 7200)


def test_a_storm_is_bounded_and_everyone_is_answered() -> None:
    """Case 62: 200 at once; none is dropped without a word."""
    desk = desk_of(Resources(requests=8), max_queue=50)
    refused = []
    for number in range(200):
        try:
            desk.submit("media", f"tenant {number}", requests=1)
        except QueueFull as error:
            refused.append(error)
    snapshot = desk.admission.snapshot()
    assert (snapshot.queued["media"], snapshot.admitted["media"], len(refused)) == (50, 8, 142)
    assert snapshot.refused == {"queue_full": 142}
    assert str(refused[0]) == (
        "queue_full: 50 requests wait already; limit: [admission.queues] media.max_queue = 50; fix: try again in 30.0 s"
    )
    while desk.held():
        release(desk.held()[0])
    assert desk.admission.snapshot().admitted["media"] == 58


def test_the_hint_follows_the_measured_rate() -> None:
    desk = desk_of(ONE_AT_A_TIME, max_queue=20)
    for _ in range(21):
        desk.submit(requests=1)
    for _ in range(10):
        desk.wait(0.5)
        release(desk.held()[0])
    for _ in range(10):
        desk.submit(requests=1)
    with pytest.raises(QueueFull) as first:
        desk.submit(requests=1)
    with pytest.raises(QueueFull) as second:
        desk.submit(requests=1)
    assert (first.value.retry_after_s, second.value.retry_after_s) == (pytest.approx(0.5), pytest.approx(1.0))


def test_with_no_queue_what_does_not_fit_is_refused_and_what_fits_is_not() -> None:
    desk = desk_of(ONE_AT_A_TIME, max_queue=0)
    held = desk.submit(requests=1)
    with pytest.raises(QueueFull):
        desk.submit(requests=1)
    release(held)
    assert is_held(desk.submit(requests=1))


def test_a_full_queue_makes_room_for_a_tenant_that_has_less_in_it() -> None:
    desk = desk_of(ONE_AT_A_TIME, max_queue=4)
    held, *waiting = [desk.submit("media", "flood", requests=1) for _ in range(5)]
    late = [desk.submit("media", "late", requests=1) for _ in range(2)]
    assert [isinstance(ticket.error, QueueFull) for ticket in waiting] == [False, False, True, True]
    with pytest.raises(QueueFull):
        desk.submit("media", "late", requests=1)
    release(held)
    assert all(ticket.waiting or is_held(ticket) for ticket in [*waiting[:2], *late])


@pytest.mark.parametrize("latency_class", CLASSES)
def test_one_tenant_floods_and_the_other_gets_half(latency_class: LatencyClass) -> None:
    desk = desk_of(Resources(requests=4), max_queue=20)
    served: Counter[str] = Counter()
    for _ in range(100):
        for tenant, times in (("flood", 8), ("polite", 2)):
            for _ in range(times):
                submit_if_room(desk, latency_class, tenant)
        ticket = desk.held()[0]
        served[ticket.ask.tenant] += 1
        release(ticket)
        desk.settled[:] = desk.held()
    assert served["polite"] / served.total() == pytest.approx(0.5, abs=0.05)


def submit_if_room(desk: Desk, latency_class: LatencyClass, tenant: str) -> None:
    try:
        desk.submit(latency_class, tenant, requests=1)
    except QueueFull:
        pass


def test_classes_share_by_their_weights_and_text_goes_first() -> None:
    desk = desk_of(ONE_AT_A_TIME, weights=(6, 3, 1))
    held = desk.submit("text", requests=1)
    for latency_class in reversed(CLASSES):
        for _ in range(100):
            desk.submit(latency_class, requests=1)
    order = []
    for _ in range(100):
        release(held)
        held = desk.held()[0]
        order.append(held.ask.latency_class)
    assert Counter(order) == pytest.approx({"text": 60, "media": 30, "batch": 10}, abs=1)
    assert order[0] == "text"


def test_cheap_text_passes_costly_media_as_often_as_its_cost_allows() -> None:
    desk = desk_of(Resources(requests=100, decoded_pixels=1000), weights=(1, 1, 1))
    held = [desk.submit("text", requests=100)]
    for _ in range(100):
        desk.submit("text", requests=1)
        desk.submit("media", requests=1, decoded_pixels=200)
    release(held[0])
    classes = [ticket.ask.latency_class for ticket in desk.settled[1:90]]
    assert classes.count("text") > 10 * classes.count("media") > 0


def test_a_large_request_at_the_head_holds_up_only_those_that_need_what_it_waits_for() -> None:
    desk = desk_of(PIXELS)
    held = desk.submit("media", "ann", requests=1, decoded_pixels=60)
    large = desk.submit("media", "bob", requests=1, decoded_pixels=60)
    small = desk.submit("media", "cid", requests=1, decoded_pixels=10)
    sound = desk.submit("media", "dan", requests=1, media_ms=1000)
    text = desk.submit("text", "eve", requests=1)
    assert (large.waiting, small.waiting) == (True, True)
    assert is_held(sound) and is_held(text)
    release(held)
    assert is_held(large) and is_held(small)


def test_each_that_has_to_wait_sets_aside_what_it_waits_for() -> None:
    desk = desk_of(Resources(decoded_pixels=10, visual_tokens=10, media_ms=10))
    desk.submit("media", "ann", decoded_pixels=6, visual_tokens=6)
    desk.submit("media", "bob", decoded_pixels=6)
    second = desk.submit("media", "cid", visual_tokens=6)
    small = desk.submit("media", "dan", visual_tokens=1, media_ms=1)
    other = desk.submit("media", "eve", media_ms=1)
    assert second.waiting and small.waiting and is_held(other)


def test_two_resources_in_turn_do_not_pass_a_large_request_for_ever() -> None:
    """What it was short of stays set aside while something else is taken."""
    desk = desk_of(Resources(visual_tokens=10, text_tokens=10))
    turns = [desk.submit("media", "a", visual_tokens=5), desk.submit("media", "b", text_tokens=5)]
    large = desk.submit("media", "large", visual_tokens=10, text_tokens=10)
    for number in range(100):
        amounts = {"visual_tokens": 5} if number % 2 else {"text_tokens": 5}
        turns.append(desk.submit("text", f"t{number}", **amounts))
        held = [ticket for ticket in turns if is_held(ticket)]
        if is_held(large):
            break
        release(held[0])
    assert number < 10


def test_a_cancelled_ticket_frees_those_it_held_up() -> None:
    desk = desk_of(PIXELS)
    desk.submit("media", "ann", requests=1, decoded_pixels=60)
    large = desk.submit("media", "bob", requests=1, decoded_pixels=60)
    small = desk.submit("media", "cid", requests=1, decoded_pixels=10)
    desk.admission.cancel(large)
    assert is_held(small)
    desk.admission.cancel(large)
    desk.admission.cancel(small)
    assert is_held(small)
    assert desk.admission.snapshot().refused == {"cancelled": 1}


def test_shrinking_a_reservation_lets_the_next_one_in() -> None:
    desk = desk_of(PIXELS)
    first = desk.submit(requests=1, decoded_pixels=60)
    second = desk.submit(requests=1, decoded_pixels=60)
    assert first.reservation is not None
    first.reservation.shrink(ResourceVector(requests=1))
    assert is_held(second)


def test_a_wait_ends_at_the_longest_wait() -> None:
    desk = desk_of(ONE_AT_A_TIME, max_wait_ms=2000)
    desk.submit(requests=1)
    late = desk.submit(requests=1)
    desk.wait(1.9)
    assert late.waiting
    desk.wait(0.1)
    assert str(late.error) == (
        "deadline_exceeded: not started after 2,000 ms of waiting; limit: [admission] max_wait_ms = 2,000; "
        "fix: try again later"
    )


def test_a_wait_ends_at_the_deadline_of_the_request_if_that_is_earlier() -> None:
    desk = desk_of(ONE_AT_A_TIME)
    desk.submit(requests=1)
    ticket = desk.admission.submit(ask_of(requests=1, deadline_s=desk.clock.now_s + 1))
    assert desk.admission.next_expiry_s() == desk.clock.now_s + 1
    desk.wait(1.0)
    assert isinstance(ticket.error, DeadlineExceeded)
    assert "limit: the request's deadline; fix: try again later, or allow more time" in str(ticket.error)
    assert desk.admission.next_expiry_s() is None


def test_what_comes_too_late_does_not_even_start() -> None:
    desk = desk_of(ONE_AT_A_TIME)
    with pytest.raises(DeadlineExceeded, match="after 0 ms"):
        desk.admission.submit(ask_of(requests=1, deadline_s=desk.clock.now_s))
    assert desk.admission.snapshot().refused == {"deadline_exceeded": 1}


def test_nobody_is_admitted_after_its_time_even_if_no_timer_rang() -> None:
    desk = desk_of(ONE_AT_A_TIME, max_wait_ms=1000)
    held = desk.submit(requests=1)
    late = desk.submit(requests=1)
    desk.clock.now_s += 5
    release(held)
    assert isinstance(late.error, DeadlineExceeded)
    assert desk.admission.ledger.held == ResourceVector()


def test_an_expired_head_frees_those_it_held_up() -> None:
    desk = desk_of(PIXELS)
    desk.submit("media", "ann", requests=1, decoded_pixels=60)
    desk.admission.submit(ask_of("media", "bob", requests=1, decoded_pixels=60, deadline_s=desk.clock.now_s + 1))
    small = desk.submit("media", "cid", requests=1, decoded_pixels=10)
    desk.wait(1.0)
    assert is_held(small)


def test_the_snapshot_tells_what_is_held_queued_admitted_and_refused() -> None:
    desk = desk_of(PIXELS, max_queue=1)
    first = desk.submit("text", requests=1, text_tokens=9)
    desk.submit("media", requests=1, decoded_pixels=90)
    desk.submit("media", requests=1, decoded_pixels=90)
    with pytest.raises(QueueFull):
        desk.submit("media", requests=1, decoded_pixels=90)
    release(first)
    snapshot = desk.admission.snapshot()
    assert {name: value for name, value in snapshot.held.items() if value} == {"requests": 1, "decoded_pixels": 90}
    assert {name: value for name, value in snapshot.peak.items() if value} == {
        "requests": 2,
        "decoded_pixels": 90,
        "text_tokens": 9,
    }
    assert snapshot.queued == {"text": 0, "media": 1, "batch": 0}
    assert snapshot.admitted == {"text": 1, "media": 1, "batch": 0}
    assert snapshot.refused == {"queue_full": 1}


def test_a_class_that_was_held_up_catches_up_by_one_capacity_only() -> None:
    """Text passes a large request for long; once that has gone, text is not held up in return for as long."""
    desk = desk_of(Resources(requests=20, decoded_pixels=100), weights=(1, 1, 1), max_queue=1000)
    blocker = desk.submit("media", "ann", requests=1, decoded_pixels=100)
    for _ in range(300):
        desk.submit("media", "bob", requests=1, decoded_pixels=1)
    for _ in range(300):
        release(desk.submit("text", requests=1))
    fill = [desk.submit("text", requests=1) for _ in range(40)]
    release(blocker)
    while fill[-1].waiting:
        release(desk.held()[0])
    passed = [ticket for ticket in desk.settled[302:] if ticket.ask.latency_class == "media"]
    assert len(passed) <= 20 + 2 * 40


def test_a_class_saves_nothing_up_while_it_is_empty() -> None:
    desk = desk_of(Resources(requests=10), weights=(1, 1, 1))
    for _ in range(60):
        desk.submit("media", requests=1)
    for _ in range(20):
        release(desk.held()[0])
    for _ in range(20):
        desk.submit("text", requests=1)
    before = len(desk.settled)
    for _ in range(10):
        release(desk.held()[0])
    classes = Counter(ticket.ask.latency_class for ticket in desk.settled[before:])
    assert classes == pytest.approx({"text": 5, "media": 5}, abs=1)
