from __future__ import annotations

import os
import threading

from proteus.backend.fleet import LlmEnd, LlmEvent
from proteus.backend.letters import LlmLetter, pack, unpack
from proteus.backend.mailbox import Letter, Mailbox
from proteus.errors import QueueFull, Unavailable
from proteus.language.generation import TokenLogprobs

END = LlmEnd(finish_reason="stop", cached_tokens=5, queue_us=1, prefill_us=2, decode_us=3)
LOGPROBS = (
    TokenLogprobs(token_id=1, logprob=-0.1, top=((1, -0.1), (7, float("-inf")))),
    TokenLogprobs(token_id=2, logprob=-1e-12),
)


def letter(number: int, end: LlmEnd | None = None) -> LlmLetter:
    return Letter(b"key", LlmEvent(text=str(number), token_ids=(number,), end=end))


def test_letters_survive_the_way_as_they_are() -> None:
    letters = [
        Letter(os.urandom(16), LlmEvent(text='é "\n', token_ids=(1, 2), end=None)),
        Letter(os.urandom(16), LlmEvent(text="ab", token_ids=(1, 2), logprobs=LOGPROBS, end=None)),
        Letter(os.urandom(16), LlmEvent(text="", token_ids=(), end=END)),
    ]
    assert unpack(pack(letters), "llm") == letters
    assert unpack(pack([]), "llm") == []


def test_error_survives_the_way_with_its_kind_and_text() -> None:
    error = QueueFull("full", limit="max_queue = 1", fix="later")
    (arrived,) = unpack(pack([Letter(b"key", error)]), "llm")
    assert type(arrived.content) is QueueFull
    assert str(arrived.content) == str(error)


def test_all_letters_are_collected_in_order_and_once() -> None:
    mailbox = Mailbox[LlmLetter]()
    for number in range(5):
        mailbox.put(letter(number))
    assert mailbox.collect(10) == [letter(number) for number in range(5)]
    assert mailbox.collect(0) == []


def test_collector_waits_for_the_first_letter() -> None:
    mailbox = Mailbox[LlmLetter]()
    collected: list[LlmLetter] = []
    collector = threading.Thread(target=lambda: collected.extend(mailbox.collect(30)))
    collector.start()
    mailbox.put(letter(1))
    collector.join(10)
    assert collected == [letter(1)]


def test_closed_mailbox_lets_its_collector_go() -> None:
    mailbox = Mailbox[LlmLetter]()
    collector = threading.Thread(target=mailbox.collect, args=(30,))
    collector.start()
    mailbox.close()
    collector.join(10)
    assert not collector.is_alive()


def test_closed_mailbox_gives_what_is_in_it_and_lets_every_collector_go() -> None:
    mailbox = Mailbox[LlmLetter]()
    mailbox.put(letter(1))
    mailbox.close()
    assert mailbox.collect(30) == [letter(1)]
    collectors = [threading.Thread(target=mailbox.collect, args=(30,)) for _ in range(3)]
    for collector in collectors:
        collector.start()
    for collector in collectors:
        collector.join(10)
    assert not any(collector.is_alive() for collector in collectors)


def test_nothing_is_lost_between_many_threads() -> None:
    mailbox, collected = Mailbox[LlmLetter](), list[LlmLetter]()

    def fill(start: int) -> None:
        for number in range(start, start + 500):
            mailbox.put(letter(number))

    threads = [threading.Thread(target=fill, args=(500 * index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    while len(collected) < 2000:
        collected += mailbox.collect(10)
    for thread in threads:
        thread.join()
    numbers = [int(one.content.text) for one in collected if isinstance(one.content, LlmEvent)]
    assert sorted(numbers) == list(range(2000))
    for index in range(4):
        own = [number for number in numbers if number // 500 == index]
        assert own == sorted(own), "each sender's letters stay in order"


def test_text_of_an_error_that_is_not_ours_never_reaches_a_client() -> None:
    (arrived,) = unpack(pack([Letter(b"key", Unavailable("llm stopped"))]), "llm")
    assert type(arrived.content) is Unavailable
