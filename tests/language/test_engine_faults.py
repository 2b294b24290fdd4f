"""The engine when clients leave, queues fill and steps fail; expected answers are its own, asked alone."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from proteus.errors import BrokenModel, InternalError, InvalidRequest, QueueFull, Unavailable
from proteus.language.engine import Event, Failure, OnnxEngine
from proteus.language.prefix_reuse import PrefixReuse
from proteus.language.sampling import Sampling
from tests.language import plant
from tests.language.clients import LONG, OTHERS, PROMPT, Client, Gate, ask, assert_empty


def test_a_cancelled_answer_ends_at_the_next_iteration(engine: OnnxEngine, whole: Client) -> None:
    client = Client(engine, PROMPT, Sampling(max_tokens=LONG))
    client.on_event = lambda event: client.cancel() if len(client.events) == 4 else None
    client.submit().wait()
    assert (client.ids, client.finish.reason) == (whole.ids[:5], "cancelled")


def test_a_request_cancelled_while_it_waits_never_takes_a_slot(engine: OnnxEngine) -> None:
    gate = Gate()
    running = Client(engine, PROMPT, Sampling(max_tokens=2), on_event=gate).submit()
    assert gate.reached.wait(60)
    waiting = Client(engine, PROMPT).submit()
    waiting.cancel()
    waiting.cancel()
    gate.opened.set()
    running.wait()
    waiting.wait()
    assert (waiting.ids, waiting.text, waiting.finish.reason) == ([], "", "cancelled")
    assert (waiting.finish.prefill_us, waiting.finish.decode_us) == (0, 0)


def test_a_stop_that_overtakes_its_request_still_stops_it(engine: OnnxEngine) -> None:
    client = Client(engine, PROMPT)
    client.cancel()
    client.submit().wait()
    assert (client.ids, client.finish.reason) == ([], "cancelled")
    again = Client(engine, PROMPT, Sampling(max_tokens=2), key=client.key).submit().wait()
    assert again.finish.reason == "length"


def test_stops_of_strangers_are_forgotten_in_the_end(engine: OnnxEngine) -> None:
    client = Client(engine, PROMPT, Sampling(max_tokens=2))
    client.cancel()
    for number in range(1024):
        engine.cancel(b"stranger %d" % number)
    assert client.submit().wait().finish.reason == "length"


def test_a_client_that_raises_loses_only_its_own_request(engine: OnnxEngine, whole: Client) -> None:
    calls: list[Event | Failure] = []

    def gone(event: Event | Failure) -> None:
        calls.append(event)
        raise ConnectionError

    Client(engine, PROMPT, Sampling(max_tokens=LONG), on_event=gone).submit()
    assert ask(engine, PROMPT, max_tokens=LONG).ids == whole.ids
    assert len(calls) == 1


def test_a_key_in_use_is_refused(engine: OnnxEngine) -> None:
    gate = Gate()
    client = Client(engine, PROMPT, Sampling(max_tokens=2), on_event=gate).submit()
    with pytest.raises(InvalidRequest, match="request_key is in use"):
        Client(engine, PROMPT, key=client.key).submit()
    gate.opened.set()
    client.wait()


def test_the_queue_is_bounded_and_says_so(start_engine: Any, llm_folder: Path) -> None:
    engine, gate = start_engine(llm_folder, slots=1, max_queue=2), Gate()
    accepted = [Client(engine, PROMPT, Sampling(max_tokens=2), on_event=gate).submit()]
    assert gate.reached.wait(60)
    accepted += [Client(engine, PROMPT, Sampling(max_tokens=2)).submit() for _ in range(2)]
    with pytest.raises(QueueFull, match=r"3 requests are decoding or waiting; limit: .* = 3; fix: try again later"):
        Client(engine, PROMPT).submit()
    gate.opened.set()
    for client in accepted:
        client.wait()
    assert ask(engine, PROMPT, max_tokens=1).finish.reason == "length"
    assert_empty(engine)
    engine.close()


def test_a_client_finds_its_place_free_when_it_hears_of_the_end(start_engine: Any, llm_folder: Path) -> None:
    engine = start_engine(llm_folder, slots=1, max_queue=1)
    second = Client(engine, PROMPT, Sampling(max_tokens=1))
    other = Client(engine, PROMPT, Sampling(max_tokens=1))

    def on_event(event: Event | Failure) -> None:
        second.submit()
        other.submit()

    Client(engine, PROMPT, Sampling(max_tokens=1), on_event=on_event).submit().wait()
    assert second.wait().finish.reason == other.wait().finish.reason == "length"
    engine.close()


def test_logits_that_are_not_finite_fail_their_request_only(
    start_engine: Any, llm_folder: Path, whole: Client, tmp_path: Path
) -> None:
    spoilt = next(number for number in range(100, 387) if number not in whole.ids)
    plant.edit_embedding(plant.copy(llm_folder, tmp_path / "1"), nan_row=spoilt)
    engine = start_engine(tmp_path / "1")
    good = Client(engine, PROMPT, Sampling(max_tokens=LONG)).submit()
    bad = Client(engine, [1, spoilt, 5], Sampling(max_tokens=LONG)).submit().wait()
    assert str(bad.failure.error) == str(BrokenModel())
    assert good.wait().ids == whole.ids
    assert ask(engine, PROMPT, max_tokens=LONG).ids == whole.ids
    assert_empty(engine)
    engine.close()


def test_a_failed_step_fails_its_batch_and_the_engine_lives_on(
    start_engine: Any, llm_folder: Path, whole: Client, tmp_path: Path
) -> None:
    """The embedding lacks the highest id of the answer: the step that reads it raises."""
    highest = max(whole.ids)
    at = whole.ids.index(highest)
    plant.edit_embedding(plant.copy(llm_folder, tmp_path / "1"), num_rows=highest)
    engine, gate = start_engine(tmp_path / "1"), Gate()
    clients = [
        Client(engine, PROMPT, Sampling(max_tokens=LONG), on_event=gate).submit(),
        Client(engine, PROMPT, Sampling(max_tokens=LONG)).submit(),
    ]
    gate.opened.set()
    for client in clients:
        assert str(client.wait().failure.error) == str(InternalError())
    assert clients[0].ids == whole.ids[: at + 1]
    assert isinstance(ask(engine, [1, highest], max_tokens=1).events[-1], Failure)  # a prefill that raises
    assert ask(engine, PROMPT, max_tokens=max(at, 1)).ids == whole.ids[: max(at, 1)]
    assert_empty(engine)
    engine.close()


def test_close_fails_what_is_in_flight_and_ends_the_thread(start_engine: Any, llm_folder: Path) -> None:
    before = set(threading.enumerate())
    engine, gate = start_engine(llm_folder, slots=1), Gate()
    clients = [Client(engine, PROMPT, Sampling(max_tokens=LONG), on_event=gate).submit()]
    assert gate.reached.wait(60)
    clients.append(Client(engine, PROMPT).submit())
    closing = [threading.Thread(target=engine.close) for _ in range(2)]
    for thread in closing:
        thread.start()
    gate.opened.set()
    for thread in closing:
        thread.join(60)
    errors = [client.wait().failure.error for client in clients]
    assert [type(error) for error in errors] == [Unavailable, Unavailable]
    assert errors[0] is not errors[1]  # one that is raised keeps the frames of whoever raised it
    with pytest.raises(Unavailable):
        Client(engine, PROMPT).submit()
    assert set(threading.enumerate()) <= before
    assert_empty(engine)


def test_a_failure_that_is_no_requests_own_ends_the_engine_and_everyone_is_told(
    start_engine: Any, llm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who watches the process starts it anew (`backend.heartbeat`): an engine that only refuses is of no use."""
    engine = start_engine(llm_folder)
    assert engine.is_alive

    def broken(*arguments: object) -> int:
        raise MemoryError

    monkeypatch.setattr(PrefixReuse, "restore", broken)
    assert isinstance(Client(engine, PROMPT).submit().wait().failure.error, Unavailable)
    engine.close()
    assert not engine.is_alive
    assert_empty(engine)


def test_a_client_may_close_the_engine(start_engine: Any, llm_folder: Path) -> None:
    engine = start_engine(llm_folder)
    client = Client(engine, PROMPT, Sampling(max_tokens=LONG), on_event=lambda event: engine.close()).submit().wait()
    assert isinstance(client.failure.error, Unavailable)


def test_200_requests_cancelled_at_random_moments_leave_nothing(engine: OnnxEngine, whole: Client) -> None:
    """From four threads at once: some while they wait, some at any token, some before or just as they are submitted."""
    failed: list[Exception] = []
    all_clients: list[Client] = []

    def clients_of(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(50):
            client = Client(engine, rng.choice([PROMPT, *OTHERS]), Sampling(max_tokens=rng.randint(1, LONG)))
            at = rng.randint(0, 12)
            client.on_event = lambda event, client=client, at=at: client.cancel() if len(client.events) == at else None
            try:
                if rng.random() < 0.1:
                    client.cancel()
                while True:
                    try:
                        client.submit()
                        break
                    except QueueFull:
                        all_clients[rng.randrange(len(all_clients))].cancel()
                all_clients.append(client)
                if rng.random() < 0.4:
                    client.cancel()
            except Exception as error:
                failed.append(error)

    threads = [threading.Thread(target=clients_of, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        engine.check()
    assert failed == []
    assert len(all_clients) == 200
    reasons = [client.wait().finish.reason for client in all_clients]
    assert reasons.count("cancelled") > 100
    assert_empty(engine)
    assert ask(engine, PROMPT, max_tokens=LONG).ids == whole.ids
