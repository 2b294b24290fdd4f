"""The engine when clients leave, queues fill and calls fail; expected pictures are its own, drawn alone."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proteus.errors import BrokenModel, DeadlineExceeded, InternalError, InvalidRequest, QueueFull, Unavailable
from proteus.generation.engine import DenoiseEngine
from proteus.generation.onnx_denoiser import OnnxDenoiser
from proteus.generation.rows import Rows
from proteus.generation.samplers import Trajectory
from proteus.generation.step_batch import StepBatch
from proteus.generation.task import Condition, DrawEvent, DrawFailure, Floats
from tests.generation.denoisers import TOKENS, WIDTH, manifest_of
from tests.generation.painters import PLAIN, Gate, Painter, assert_empty, condition_of, draw, engine_limits, held

HUGE = Condition(states=np.full((TOKENS, WIDTH), 3e38, dtype=np.float32))  # finite, and too large for any sum


@pytest.fixture
def own_engine(denoiser_folder: Path) -> Any:
    """One that the test may break."""
    engine = DenoiseEngine(denoiser_folder, manifest_of(), engine_limits())
    yield engine
    engine.close()


def wasted(engine: DenoiseEngine) -> dict[str, float]:
    return dict(engine.figures().values("proteus_draw_wasted_rows_total"))


def test_a_cancelled_picture_ends_before_the_next_step(engine: DenoiseEngine) -> None:
    painter = Painter(engine, replace(PLAIN, steps=20, preview_every=1, max_previews_per_s=1e9))
    painter.on_event = lambda event: painter.cancel() if len(painter.events) == 4 else None
    painter.submit().wait()
    assert (painter.last.step, painter.last.steps, painter.last.clean) == (5, 20, None)
    assert (painter.end.reason, painter.end.evaluations) == ("cancelled", 10)


def test_a_picture_cancelled_while_it_waits_is_never_computed(engine: DenoiseEngine) -> None:
    holding, gate = held(engine)
    waiting = Painter(engine).submit()
    waiting.cancel()
    waiting.cancel()
    gate.opened.set()
    holding.wait()
    end = waiting.wait().end
    assert (end.reason, end.evaluations, end.denoise_us, end.accelerator_us) == ("cancelled", 0, 0, 0)
    assert waiting.last.step == 0


def test_a_cancel_that_overtakes_its_picture_still_stops_it_once(engine: DenoiseEngine) -> None:
    painter = Painter(engine)
    painter.cancel()
    assert painter.submit().wait().end.evaluations == 0
    assert Painter(engine, key=painter.key).submit().wait().end.reason == "done"


def test_waste_is_split_at_the_moment_the_cancel_came(
    own_engine: DenoiseEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three calls before it, and the one that it came in the middle of."""
    calls = []
    run = OnnxDenoiser.run
    painter = Painter(own_engine, replace(PLAIN, steps=20))

    def cancelling(denoiser: OnnxDenoiser, rows: Rows) -> Floats:
        calls.append(rows.num_rows)
        if len(calls) == 4:
            painter.cancel()
        return run(denoiser, rows)

    monkeypatch.setattr(OnnxDenoiser, "run", cancelling)
    painter.submit().wait()
    assert (painter.end.reason, painter.end.evaluations, painter.last.step) == ("cancelled", 8, 3)
    assert wasted(own_engine) == {"before": 6, "after": 2}
    seconds = own_engine.figures().values("proteus_draw_wasted_seconds_total")
    assert sum(seconds.values()) == pytest.approx(painter.end.accelerator_us * 1e-6, abs=2e-6)
    assert min(seconds.values()) > 0


def test_what_is_done_or_failed_is_no_waste(own_engine: DenoiseEngine) -> None:
    draw(own_engine)
    Painter(own_engine, prompt=HUGE).submit().wait()
    assert wasted(own_engine) == {"before": 0, "after": 0}


def test_a_cancel_during_the_last_call_still_counts(own_engine: DenoiseEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    run = OnnxDenoiser.run
    painter = Painter(own_engine, replace(PLAIN, steps=1))

    def cancelling(denoiser: OnnxDenoiser, rows: Rows) -> Floats:
        painter.cancel()
        return run(denoiser, rows)

    monkeypatch.setattr(OnnxDenoiser, "run", cancelling)
    assert painter.submit().wait().end.reason == "cancelled"
    assert wasted(own_engine) == {"before": 0, "after": 2}


def test_a_client_that_raises_loses_only_its_own_picture(engine: DenoiseEngine) -> None:
    alone = draw(engine, steps=12)
    calls: list[object] = []

    def gone(event: DrawEvent | DrawFailure) -> None:
        calls.append(event)
        raise ConnectionError

    Painter(engine, replace(PLAIN, preview_every=1), on_event=gone).submit()
    assert np.array_equal(draw(engine, steps=12).latent, alone.latent)
    assert len(calls) == 1


def test_a_key_in_use_is_refused(engine: DenoiseEngine) -> None:
    holding, gate = held(engine)
    with pytest.raises(InvalidRequest, match="request_key is in use"):
        Painter(engine, key=holding.key).submit()
    gate.opened.set()
    holding.wait()


def test_the_queue_is_bounded_and_says_so(denoiser_folder: Path) -> None:
    engine = DenoiseEngine(denoiser_folder, manifest_of(), engine_limits(live_images=1, max_queue=2))
    holding, gate = held(engine)
    accepted = [Painter(engine).submit() for _ in range(2)]
    with pytest.raises(QueueFull, match=r"2 pictures wait.*; limit: \[denoiser\] max_queue = 2; fix: try again later"):
        Painter(engine).submit()
    gate.opened.set()
    for painter in [holding, *accepted]:
        assert painter.wait().end.reason == "done"
    draw(engine)
    assert_empty(engine)
    engine.close()


def test_a_client_finds_its_place_free_when_it_hears_of_the_end(denoiser_folder: Path) -> None:
    engine = DenoiseEngine(denoiser_folder, manifest_of(), engine_limits(live_images=1, max_queue=0))
    second = Painter(engine)
    Painter(engine, on_event=lambda event: second.submit() and None).submit().wait()
    assert second.wait().end.reason == "done"
    engine.close()


def test_a_picture_that_cannot_begin_in_time_is_refused(denoiser_folder: Path) -> None:
    engine = DenoiseEngine(denoiser_folder, manifest_of(), engine_limits(live_images=1))
    holding, gate = held(engine)
    late = Painter(engine, deadline_s=time.monotonic() + 0.02).submit()
    time.sleep(0.03)
    gate.opened.set()
    assert isinstance(late.wait().error, DeadlineExceeded)
    holding.wait()
    with pytest.raises(DeadlineExceeded):
        Painter(engine, deadline_s=time.monotonic() - 1).submit()
    engine.close()


@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_a_prediction_that_is_not_finite_ends_its_own_picture_only(engine: DenoiseEngine, guidance: float) -> None:
    alone = draw(engine, steps=12)
    holding, gate = held(engine)
    good = Painter(engine, replace(PLAIN, steps=12)).submit()
    bad = Painter(engine, replace(PLAIN, guidance=guidance), prompt=HUGE).submit()
    gate.opened.set()
    assert isinstance(bad.wait().error, BrokenModel)
    assert "the denoiser's output cannot be used, the picture ends here" in str(bad.error)
    assert np.array_equal(good.wait().latent, alone.latent)
    holding.wait()


def test_a_latent_that_outgrows_its_numbers_ends_its_own_picture(
    own_engine: DenoiseEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def huge(denoiser: OnnxDenoiser, rows: Rows) -> Floats:
        rows.prediction[:] = 3e38
        return rows.prediction

    monkeypatch.setattr(OnnxDenoiser, "run", huge)
    assert isinstance(draw(own_engine, sampler="heun").error, BrokenModel)


def test_a_failed_call_fails_its_pictures_only(own_engine: DenoiseEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = draw(own_engine, steps=12)
    run = OnnxDenoiser.run

    def failing(denoiser: OnnxDenoiser, rows: Rows) -> Floats:
        if rows.latents.shape[-1] == 12:
            raise RuntimeError("out of memory")
        return run(denoiser, rows)

    holding, gate = held(own_engine)
    monkeypatch.setattr(OnnxDenoiser, "run", failing)
    good = Painter(own_engine, replace(PLAIN, steps=12)).submit()
    bad = [Painter(own_engine, replace(PLAIN, width_px=96)).submit() for _ in range(2)]
    gate.opened.set()
    assert [str(painter.wait().error) for painter in bad] == [str(InternalError())] * 2
    assert np.array_equal(good.wait().latent, alone.latent)
    holding.wait()
    assert own_engine.figures().values("proteus_draw_ended_total") == {"done": 3, "internal": 2}
    assert_empty(own_engine)


def test_a_step_that_cannot_be_made_fails_its_own_picture(
    own_engine: DenoiseEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Trajectory.advance

    def failing(trajectory: Trajectory, prediction: Floats) -> None:
        if trajectory.evaluations_left == 3:
            raise ArithmeticError
        advance(trajectory, prediction)

    monkeypatch.setattr(Trajectory, "advance", failing)
    assert isinstance(draw(own_engine).error, InternalError)
    assert draw(own_engine, steps=2).end.reason == "done"


def test_close_fails_what_is_in_flight_and_ends_the_thread(denoiser_folder: Path) -> None:
    before = set(threading.enumerate())
    engine = DenoiseEngine(denoiser_folder, manifest_of(), engine_limits(live_images=1))
    holding, gate = held(engine, steps=50)
    waiting = Painter(engine).submit()
    closing = [threading.Thread(target=engine.close) for _ in range(2)]
    for thread in closing:
        thread.start()
    gate.opened.set()
    for thread in closing:
        thread.join(60)
    errors = [painter.wait().error for painter in (holding, waiting)]
    assert [type(error) for error in errors] == [Unavailable, Unavailable]
    assert errors[0] is not errors[1]  # one that is raised keeps the frames of whoever raised it
    with pytest.raises(Unavailable):
        Painter(engine).submit()
    assert set(threading.enumerate()) <= before
    assert_empty(engine)


def test_a_client_may_close_the_engine(denoiser_folder: Path) -> None:
    engine = DenoiseEngine(denoiser_folder, manifest_of(), engine_limits())
    painter = Painter(engine, replace(PLAIN, preview_every=1), on_event=lambda event: engine.close()).submit()
    assert isinstance(painter.wait().error, Unavailable)


def test_a_failure_that_is_no_pictures_own_ends_the_engine_and_everyone_is_told(
    own_engine: DenoiseEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who watches the process starts it anew (`backend.heartbeat`): an engine that only refuses is of no use."""

    def broken(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(StepBatch, "stepped", broken)
    assert isinstance(Painter(own_engine).submit().wait().error, Unavailable)
    own_engine.close()
    assert not own_engine.is_alive
    assert_empty(own_engine)


def test_who_had_left_the_batch_is_told_as_well_when_the_engine_ends(
    own_engine: DenoiseEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(DenoiseEngine, "_ended_by", broken)
    holding, gate = held(own_engine)
    leaving = Painter(own_engine).submit()
    leaving.cancel()
    gate.opened.set()
    assert [type(painter.wait().error) for painter in (leaving, holding)] == [Unavailable] * 2
    own_engine.close()
    assert_empty(own_engine)


def test_previews_may_be_as_rare_as_numbers_get(engine: DenoiseEngine) -> None:
    assert len(draw(engine, preview_every=1, max_previews_per_s=5e-324).previews) == 1


def test_200_pictures_cancelled_at_random_moments_leave_nothing_and_change_no_other(engine: DenoiseEngine) -> None:
    """From four threads at once: some while they wait, some at any step, some before or just as they are submitted."""
    kept = [
        (replace(PLAIN, steps=steps, seed=steps, sampler=sampler), condition_of(steps))
        for steps, sampler in ((4, "heun"), (11, "euler"), (20, "dpmpp_2m"), (50, "ddim"))
    ]
    alone = [Painter(engine, settings, prompt).submit().wait().latent for settings, prompt in kept]
    failed: list[Exception] = []
    cancelled: list[Painter] = []
    undisturbed: list[tuple[Painter, Floats]] = []
    waste_before = wasted(engine)

    def paint(seed: int) -> None:
        chance = random.Random(seed)
        for number in range(50):
            settings = replace(
                PLAIN,
                seed=chance.randrange(1000),
                steps=chance.randint(1, 20),
                guidance=chance.choice((1.0, 3.0)),
                sampler=chance.choice(("euler", "heun")),
                width_px=chance.choice((64, 64, 96)),
                preview_every=1,
                max_previews_per_s=1e9,
            )
            painter = Painter(engine, settings)
            at = chance.randint(0, 8)
            painter.on_event = lambda event, painter=painter, at=at: (
                painter.cancel() if len(painter.events) == at else None
            )
            try:
                if chance.random() < 0.1:
                    painter.cancel()
                cancelled.append(painter.submit())
                if chance.random() < 0.4:
                    painter.cancel()
                if number % 10 == 0:
                    chosen = chance.randrange(len(kept))
                    undisturbed.append((Painter(engine, *kept[chosen]).submit(), alone[chosen]))
            except Exception as error:
                failed.append(error)

    threads = [threading.Thread(target=paint, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        engine.check()
    assert failed == []
    reasons = [painter.wait().end.reason for painter in cancelled]
    assert len(reasons) == 200 and reasons.count("cancelled") > 120
    assert len(undisturbed) == 20
    assert all(np.array_equal(painter.wait().latent, latent) for painter, latent in undisturbed)
    evaluations = sum(painter.end.evaluations for painter in cancelled if painter.end.reason == "cancelled")
    assert sum(wasted(engine).values()) - sum(waste_before.values()) == evaluations
    assert_empty(engine)


def test_a_slow_client_is_waited_for_in_previews_and_told_in_their_time(own_engine: DenoiseEngine) -> None:
    gate = Gate()
    painter = Painter(own_engine, replace(PLAIN, preview_every=3, max_previews_per_s=1e9), on_event=gate).submit()
    assert gate.reached.wait(60)
    gate.opened.set()
    painter.wait()
    figures = own_engine.figures()
    assert figures.values("proteus_draw_previews_total") == {"": 1}
    assert figures.values("proteus_draw_preview_seconds_total")[""] > 0
