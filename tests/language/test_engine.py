"""The engine on the real graphs of a tiny random checkpoint; expected answers are its own, asked alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proteus.deployment import DeploymentError
from proteus.errors import InternalError, InvalidRequest, PromptTooLong, QueueFull, Unavailable
from proteus.language.engine import Event, Failure, OnnxEngine
from proteus.language.sampling import Sampling
from proteus.language.tokenizer import load_tokenizer
from tests.language import plant
from tests.language.clients import Client, ask

CONTEXT = 128
SLOTS = 3
MAX_QUEUE = 64
PROMPT = [1, 40, 41, 42, 43]
OTHERS = ([1, 50, 51], [1, 60, 61, 62, 63, 64, 65, 66, 67], [1, 70], [1, *range(80, 120)])
LONG = 60  # tokens of an answer that is still going on when something happens to it
IMAGE = 3
ROWS = np.ones((4, 64), dtype=np.float32)


@pytest.fixture(scope="module")
def folder(tiny_export: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export, told that no token ends an answer, so that lengths are known."""
    source = tiny_export / "model_repository" / "llm" / "1"
    return plant.copy(source, tmp_path_factory.mktemp("llm") / "1", eos_token_ids=[])


@pytest.fixture(scope="module")
def start(tiny_checkpoint: Path) -> Any:
    tokenizer = load_tokenizer(tiny_checkpoint)

    def start_engine(folder: Path, *, slots: int = SLOTS, max_queue: int = MAX_QUEUE) -> OnnxEngine:
        return OnnxEngine(folder, tokenizer, slots=slots, context_tokens=CONTEXT, max_queue=max_queue, threads=1)

    return start_engine


@pytest.fixture(scope="module")
def shared_engine(start: Any, folder: Path) -> Iterator[OnnxEngine]:
    engine = start(folder)
    yield engine
    engine.close()


@pytest.fixture
def engine(shared_engine: OnnxEngine) -> Iterator[OnnxEngine]:
    """Checked after each test: nothing may be left in it."""
    yield shared_engine
    assert_empty(shared_engine)


@pytest.fixture(scope="module")
def whole(shared_engine: OnnxEngine) -> Client:
    """The undisturbed answer to PROMPT."""
    return ask(shared_engine, PROMPT, max_tokens=LONG)


def assert_empty(engine: OnnxEngine) -> None:
    engine.check()
    assert engine.num_in_flight == 0


class Gate:
    """An `on_event` that holds the engine's thread, as a slow client would, until opened."""

    def __init__(self, after: int = 1) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self._left = after

    def __call__(self, event: Event | Failure) -> None:
        self._left -= 1
        if self._left == 0:
            self.reached.set()
            assert self.opened.wait(60)


def test_max_tokens_ends_an_answer(engine: OnnxEngine, whole: Client) -> None:
    for max_tokens in (1, 2, 17):
        answer = ask(engine, PROMPT, max_tokens=max_tokens)
        assert (answer.ids, answer.finish.reason) == (whole.ids[:max_tokens], "length")


def test_each_event_but_the_last_has_one_token_and_no_finish(whole: Client) -> None:
    assert [len(event.token_ids) for event in whole.events if isinstance(event, Event)] == [1] * LONG
    assert [getattr(event, "finish", None) is None for event in whole.events] == [True] * (LONG - 1) + [False]


def test_text_is_that_of_the_ids(engine: OnnxEngine, whole: Client, tiny_checkpoint: Path) -> None:
    assert whole.text == load_tokenizer(tiny_checkpoint).decode(whole.ids, skip_special_tokens=True)


def test_a_stop_token_ends_an_answer_and_is_counted_but_not_text(
    engine: OnnxEngine, whole: Client, tiny_checkpoint: Path
) -> None:
    stop = whole.ids[9]
    at = whole.ids.index(stop)
    answer = ask(engine, PROMPT, max_tokens=LONG, stop_token_ids=(stop,))
    assert (answer.ids, answer.finish.reason) == (whole.ids[: at + 1], "stop")
    assert answer.text == load_tokenizer(tiny_checkpoint).decode(whole.ids[:at], skip_special_tokens=True)


def test_the_exports_end_tokens_end_an_answer(start: Any, folder: Path, whole: Client, tmp_path: Path) -> None:
    engine = start(plant.copy(folder, tmp_path / "1", eos_token_ids=[whole.ids[5], whole.ids[30]]))
    answer = ask(engine, PROMPT, max_tokens=LONG)
    engine.close()
    at = min(whole.ids.index(whole.ids[5]), whole.ids.index(whole.ids[30]))
    assert (answer.ids, answer.finish.reason) == (whole.ids[: at + 1], "stop")


def test_a_stop_string_cuts_the_text_before_it(engine: OnnxEngine, whole: Client) -> None:
    stop = whole.text[20:26]
    answer = ask(engine, PROMPT, max_tokens=LONG, stop=("never said", stop))
    assert (answer.text, answer.finish.reason) == (whole.text[: whole.text.index(stop)], "stop")
    assert answer.ids == whole.ids[: len(answer.ids)]
    assert len(answer.ids) < LONG


def test_text_held_back_for_a_stop_string_comes_at_the_end(engine: OnnxEngine, whole: Client) -> None:
    answer = ask(engine, PROMPT, max_tokens=LONG, stop=(whole.text[-4:] + "never said",))
    assert (answer.text, answer.finish.reason) == (whole.text, "length")


def test_the_context_caps_the_answer(engine: OnnxEngine) -> None:
    prompt = [1] + [40 + n % 50 for n in range(CONTEXT - 11)]
    answer = ask(engine, prompt, max_tokens=LONG)
    assert (len(answer.ids), answer.finish.reason) == (10, "length")
    assert len(ask(engine, [1] * (CONTEXT - 1), max_tokens=LONG).ids) == 1


def test_a_prompt_that_fills_the_context_is_refused_with_the_numbers(engine: OnnxEngine) -> None:
    with pytest.raises(PromptTooLong, match=r"128 tokens, 4 of them visual.*context_tokens = 128.*fewer pictures"):
        Client(engine, [1] * 124 + [IMAGE] * 4, visual_spans=((124, 4),), visual_tokens=ROWS).submit()


@pytest.mark.parametrize(
    ("ids", "spans", "rows", "text"),
    [
        ([], (), None, "input_ids has shape"),
        ([[1, 2]], (), None, "input_ids has shape"),
        ([1, -1], (), None, "outside the vocabulary; limit: 0 to 386"),
        ([1, 387], (), None, "outside the vocabulary"),
        ([1, IMAGE], (), None, "placeholders"),
        ([1, IMAGE, IMAGE, 5], ((1, 1),), ROWS[:1], "placeholders"),
        ([1, IMAGE, 5, 5], ((1, 2),), ROWS[:2], "placeholders"),
        ([1, IMAGE, IMAGE], ((1, 3),), ROWS[:3], "outside the prompt"),
        ([1, IMAGE, IMAGE], ((-1, 2),), ROWS[:2], "outside the prompt"),
        ([1, IMAGE, IMAGE], ((1, 0),), None, "empty"),
        ([1, IMAGE, 5, IMAGE], ((3, 1), (1, 1)), ROWS[:2], "out of order"),
        ([1, IMAGE, IMAGE, IMAGE], ((1, 2), (2, 2)), ROWS, "overlapping"),
        ([1, IMAGE, IMAGE], ((1, 2),), None, r"shape \[0, 64\]; limit: \[2, 64\]"),
        ([1, IMAGE, IMAGE], ((1, 2),), ROWS[:3], r"shape \[3, 64\]"),
        ([1, IMAGE, IMAGE], ((1, 2),), ROWS[:2, :63], r"shape \[2, 63\]"),
        ([1, 5], (), ROWS[:2], r"shape \[2, 64\]; limit: \[0, 64\]"),
        ([1, IMAGE], ((1, 1),), ROWS[:1] * np.nan, "not finite"),
        ([1, IMAGE], ((1, 1),), ROWS[:1] * np.float32(np.inf), "not finite"),
    ],
)
def test_prompts_that_do_not_fit_together_are_refused(
    engine: OnnxEngine, ids: Any, spans: Any, rows: Any, text: str
) -> None:
    with pytest.raises(InvalidRequest, match=text):
        Client(engine, ids, visual_spans=spans, visual_tokens=rows).submit()


def test_rows_of_pictures_go_where_their_spans_are(engine: OnnxEngine) -> None:
    rows = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    ids, spans = [1, IMAGE, 5, IMAGE, IMAGE, IMAGE, 6], ((1, 1), (3, 3))
    answers = [
        Client(engine, ids, Sampling(max_tokens=12), visual_tokens=given, visual_spans=spans).submit().wait().ids
        for given in (rows, rows.copy(), rows[::-1].copy())
    ]
    assert answers[0] == answers[1] != answers[2]


def test_requests_join_while_another_decodes(engine: OnnxEngine, whole: Client) -> None:
    order: list[str] = []
    joined = Client(engine, OTHERS[0], Sampling(max_tokens=3), on_event=lambda event: order.append("joined"))
    gate = Gate(after=5)

    def on_event(event: Event | Failure) -> None:
        gate(event)
        order.append("first")

    first = Client(engine, PROMPT, Sampling(max_tokens=LONG), on_event=on_event).submit()
    assert gate.reached.wait(60)
    joined.submit()
    gate.opened.set()
    first.wait()
    joined.wait()
    assert order.index("joined") < order.index("first") + 10
    assert order[-1] == "first"
    assert first.ids == whole.ids


def test_neighbours_change_no_answer(engine: OnnxEngine, whole: Client) -> None:
    alone = [ask(engine, prompt, max_tokens=20).ids for prompt in OTHERS]
    clients = [Client(engine, prompt, Sampling(max_tokens=20)) for prompt in OTHERS]
    first = Client(engine, PROMPT, Sampling(max_tokens=LONG))
    for client in (*clients[:2], first, *clients[2:]):
        client.submit()
    assert [client.wait().ids for client in clients] == alone
    assert first.wait().ids == whole.ids


def test_a_seed_gives_the_same_answer_whatever_slot_and_neighbours(engine: OnnxEngine) -> None:
    sampling = Sampling(max_tokens=20, temperature=1.5, top_k=50, top_p=0.95, seed=5)
    alone = Client(engine, PROMPT, sampling).submit().wait()
    neighbours = [Client(engine, ids, Sampling(max_tokens=20, temperature=1.0)).submit() for ids in OTHERS[:2]]
    crowded = Client(engine, PROMPT, sampling).submit().wait()
    other = ask(engine, PROMPT, max_tokens=20, temperature=1.5, top_k=50, top_p=0.95, seed=6)
    for neighbour in neighbours:
        neighbour.wait()
    assert alone.ids == crowded.ids != other.ids


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


def test_the_queue_is_bounded_and_says_so(start: Any, folder: Path) -> None:
    engine, gate = start(folder, slots=1, max_queue=2), Gate()
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


def test_a_client_finds_its_place_free_when_it_hears_of_the_end(start: Any, folder: Path) -> None:
    engine = start(folder, slots=1, max_queue=1)
    second = Client(engine, PROMPT, Sampling(max_tokens=1))
    other = Client(engine, PROMPT, Sampling(max_tokens=1))

    def on_event(event: Event | Failure) -> None:
        second.submit()
        other.submit()

    Client(engine, PROMPT, Sampling(max_tokens=1), on_event=on_event).submit().wait()
    assert second.wait().finish.reason == other.wait().finish.reason == "length"
    engine.close()


def test_stage_times_add_up(whole: Client) -> None:
    finish = whole.finish
    assert finish.queue_us >= 0
    assert finish.prefill_us > 0
    assert finish.decode_us > 0


def test_logits_that_are_not_finite_fail_their_request_only(
    start: Any, folder: Path, whole: Client, tmp_path: Path
) -> None:
    spoilt = next(number for number in range(100, 387) if number not in whole.ids)
    plant.edit_embedding(plant.copy(folder, tmp_path / "1"), nan_row=spoilt)
    engine = start(tmp_path / "1")
    good = Client(engine, PROMPT, Sampling(max_tokens=LONG)).submit()
    bad = Client(engine, [1, spoilt, 5], Sampling(max_tokens=LONG)).submit().wait()
    assert str(bad.failure.error) == str(InternalError())
    assert good.wait().ids == whole.ids
    assert ask(engine, PROMPT, max_tokens=LONG).ids == whole.ids
    assert_empty(engine)
    engine.close()


def test_a_failed_step_fails_its_batch_and_the_engine_lives_on(
    start: Any, folder: Path, whole: Client, tmp_path: Path
) -> None:
    """The embedding lacks the highest id of the answer: the step that reads it raises."""
    highest = max(whole.ids)
    at = whole.ids.index(highest)
    plant.edit_embedding(plant.copy(folder, tmp_path / "1"), num_rows=highest)
    engine, gate = start(tmp_path / "1"), Gate()
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


def test_close_fails_what_is_in_flight_and_ends_the_thread(start: Any, folder: Path) -> None:
    before = set(threading.enumerate())
    engine, gate = start(folder, slots=1), Gate()
    clients = [Client(engine, PROMPT, Sampling(max_tokens=LONG), on_event=gate).submit()]
    assert gate.reached.wait(60)
    clients.append(Client(engine, PROMPT).submit())
    closing = [threading.Thread(target=engine.close) for _ in range(2)]
    for thread in closing:
        thread.start()
    gate.opened.set()
    for thread in closing:
        thread.join(60)
    assert [type(client.wait().failure.error) for client in clients] == [Unavailable, Unavailable]
    with pytest.raises(Unavailable):
        Client(engine, PROMPT).submit()
    assert set(threading.enumerate()) <= before
    assert_empty(engine)


def test_a_client_may_close_the_engine(start: Any, folder: Path) -> None:
    engine = start(folder)
    client = Client(engine, PROMPT, Sampling(max_tokens=LONG), on_event=lambda event: engine.close()).submit().wait()
    assert isinstance(client.failure.error, Unavailable)


def test_a_context_beyond_the_checkpoints_positions_is_refused_at_load(folder: Path, tiny_checkpoint: Path) -> None:
    with pytest.raises(DeploymentError, match=r"context_tokens = 513; limit: the checkpoint knows 512 positions"):
        OnnxEngine(folder, load_tokenizer(tiny_checkpoint), slots=1, context_tokens=513, max_queue=1, threads=1)


def test_a_folder_without_an_export_is_refused_at_load(tmp_path: Path, tiny_checkpoint: Path) -> None:
    with pytest.raises(DeploymentError, match=r"export\.json is missing or wrong; fix: export the checkpoint"):
        OnnxEngine(tmp_path, load_tokenizer(tiny_checkpoint), slots=1, context_tokens=8, max_queue=1, threads=1)


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
