"""The engine on the real graphs of a tiny random checkpoint; expected answers are its own, asked alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proteus.deployment import DeploymentError
from proteus.errors import InvalidRequest, PromptTooLong
from proteus.language.engine import Event, Failure, OnnxEngine
from proteus.language.sampling import Sampling
from proteus.language.tokenizer import load_tokenizer
from tests.language import plant
from tests.language.clients import CONTEXT, LONG, OTHERS, PROMPT, Client, Gate, ask, engine_limits

IMAGE = 3
ROWS = np.ones((4, 64), dtype=np.float32)


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


def test_the_exports_end_tokens_end_an_answer(
    start_engine: Any, llm_folder: Path, whole: Client, tmp_path: Path
) -> None:
    engine = start_engine(plant.copy(llm_folder, tmp_path / "1", eos_token_ids=[whole.ids[5], whole.ids[30]]))
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


def test_stage_times_add_up(whole: Client) -> None:
    finish = whole.finish
    assert finish.queue_us >= 0
    assert finish.prefill_us > 0
    assert finish.decode_us > 0


def test_a_context_beyond_the_checkpoints_positions_is_refused_at_load(llm_folder: Path, tiny_checkpoint: Path) -> None:
    with pytest.raises(DeploymentError, match=r"context_tokens = 513; limit: the checkpoint knows 512 positions"):
        OnnxEngine(llm_folder, load_tokenizer(tiny_checkpoint), engine_limits(context_tokens=513), revision="tiny")


def test_a_folder_without_an_export_is_refused_at_load(tmp_path: Path, tiny_checkpoint: Path) -> None:
    with pytest.raises(DeploymentError, match=r"export\.json is missing or wrong; fix: export the checkpoint"):
        OnnxEngine(tmp_path, load_tokenizer(tiny_checkpoint), engine_limits(), revision="tiny")
