"""The engine on the graph of a tiny random UNet; what is expected is drawn alone, or in a loop without any engine."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from proteus.backend.heartbeat import EngineWatch
from proteus.errors import InvalidRequest
from proteus.generation.engine import DenoiseEngine
from proteus.generation.figures import DRAW_FIGURES
from proteus.generation.guidance import combine
from proteus.generation.noise import INITIAL, noise
from proteus.generation.samplers import Sampler
from proteus.generation.schedule import NoiseSchedule
from proteus.generation.task import Condition, DrawEvent, DrawFailure, Floats, Settings
from tests.generation.denoisers import CHANNELS, POOLED, TOKENS, WIDTH, manifest_of, save_sum
from tests.generation.painters import PLAIN, Gate, Painter, condition_of, draw, engine_limits, held

SAMPLERS = ("euler", "ddim", "heun", "dpmpp_2m")
COMPANY = (
    (replace(PLAIN, steps=4, seed=1), 11),
    (replace(PLAIN, steps=20, seed=2, guidance=7.5, sampler="dpmpp_2m"), 12),
    (replace(PLAIN, steps=50, seed=3, guidance=1.0, sampler="ddim"), 13),
    (replace(PLAIN, steps=9, seed=4, sampler="heun", width_px=96, preview_every=2), 14),
    (replace(PLAIN, steps=13, seed=2**63 - 1, guidance=1.5, image_index=5, height_px=96, width_px=96), 15),
)


def bare_loop(folder: Path, settings: Settings, prompt: Condition, negative: Condition) -> Floats:
    """One picture, one call a step, without any engine."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(folder / "denoiser.onnx", options, providers=["CPUExecutionProvider"])
    grid = NoiseSchedule.of(manifest_of()).grid(settings.steps, settings.sampler)
    shape = (CHANNELS, settings.height_px // 8, settings.width_px // 8)
    trajectory = Sampler(grid).start(noise(settings.seed, settings.image_index, INITIAL, shape))
    states = np.stack([prompt.states, negative.states])
    while trajectory.evaluations_left:
        given = {
            "latents": np.stack([trajectory.model_input()] * 2),
            "timestep": np.full(2, trajectory.timestep, dtype=np.float32),
            "text_states": states,
        }
        (prediction,) = session.run(["prediction"], given)
        one_branch = settings.guidance == 1
        trajectory.advance(prediction[0] if one_branch else combine(prediction[0], prediction[1], settings.guidance))
    return trajectory.latent


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_a_picture_is_what_a_bare_loop_draws(
    engine: DenoiseEngine, denoiser_folder: Path, sampler: Any, guidance: float
) -> None:
    settings = replace(PLAIN, sampler=sampler, guidance=guidance, width_px=96)
    painter = Painter(engine, settings).submit().wait()
    assert np.array_equal(painter.latent, bare_loop(denoiser_folder, settings, condition_of(1), condition_of(2)))


def test_a_picture_is_the_same_bits_alone_and_among_others(engine: DenoiseEngine) -> None:
    """Five of different steps, guidances, samplers and sizes that join one after the other, and as the first of all."""
    alone = [Painter(engine, settings, condition_of(text)).submit().wait() for settings, text in COMPANY]
    for order in (COMPANY, COMPANY[::-1]):
        holding, gate = held(engine, steps=30)
        painters = [Painter(engine, settings, condition_of(text)).submit() for settings, text in order]
        gate.opened.set()
        together = [painter.wait() for painter in painters]
        holding.wait()
        for one, other in zip(alone, together if order is COMPANY else together[::-1], strict=True):
            assert np.array_equal(one.latent, other.latent)
            assert (one.end.evaluations, one.end.branches) == (other.end.evaluations, other.end.branches)


def test_a_distilled_flow_model_takes_guidance_as_an_input_and_is_shifted_by_size(tmp_path: Path) -> None:
    """A graph that adds up all of its inputs; no negative condition is asked for, whatever the guidance."""
    manifest = manifest_of(
        family="flux",
        pooled_width=POOLED,
        prediction="flow",
        scheduler={"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0, "use_dynamic_shifting": True},
        embedded_guidance=True,
    )
    save_sum(tmp_path / "denoiser.onnx")
    engine = DenoiseEngine(tmp_path, manifest, engine_limits())
    generator = np.random.default_rng(0)
    prompt = Condition(
        states=generator.standard_normal((TOKENS, WIDTH)).astype(np.float32),
        pooled=generator.standard_normal(POOLED).astype(np.float32),
    )
    assert prompt.pooled is not None
    settings = replace(PLAIN, steps=4, guidance=3.5, width_px=128, sampler="dpmpp_2m")
    painter = Painter(engine, settings, prompt, negative=None).submit().wait()
    engine.close()
    trajectory = Sampler(NoiseSchedule.of(manifest).grid(4, "dpmpp_2m", 8 * 16 // 4)).start(
        noise(settings.seed, 0, INITIAL, (CHANNELS, 8, 16))
    )
    while trajectory.evaluations_left:
        text = prompt.states.sum() + prompt.pooled.sum()
        trajectory.advance(trajectory.model_input() + np.float32(trajectory.timestep) + 3.5 + text)
    assert (painter.end.branches, painter.end.evaluations) == (1, 4)
    assert np.allclose(painter.latent, trajectory.latent, rtol=1e-5, atol=1e-3)


def test_pictures_share_calls(shared_engine: DenoiseEngine) -> None:
    holding, gate = held(shared_engine, steps=2)
    painters = [Painter(shared_engine, replace(PLAIN, steps=10, seed=seed)).submit() for seed in range(4)]
    before = shared_engine.figures().counts
    gate.opened.set()
    for painter in painters:
        painter.wait()
    holding.wait()
    after = shared_engine.figures().counts
    assert after.rows - before.rows == 4 * 20 + 2
    assert after.calls - before.calls <= 13  # 10 steps of three, and of the one that waited for the first's place


@pytest.mark.parametrize(
    ("sampler", "guidance", "evaluations", "branches"),
    [("euler", 3.0, 12, 2), ("heun", 3.0, 22, 2), ("ddim", 1.0, 6, 1), ("heun", 1.0, 11, 1)],
)
def test_the_account_of_a_picture(
    shared_engine: DenoiseEngine, sampler: str, guidance: float, evaluations: int, branches: int
) -> None:
    before = shared_engine.figures().counts
    painter = draw(shared_engine, sampler=sampler, guidance=guidance)
    counts = shared_engine.figures().counts
    end = painter.end
    assert (end.reason, end.evaluations, end.branches) == ("done", evaluations, branches)
    assert (painter.last.step, painter.last.steps) == (6, 6)
    assert counts.rows - before.rows == evaluations
    assert counts.padded_rows == before.padded_rows
    seconds = counts.seconds["64x64"] - before.seconds["64x64"]
    assert end.accelerator_us == pytest.approx(seconds * 1e6, abs=2)  # alone, all the time of its calls is its own
    assert 0 < end.accelerator_us <= end.denoise_us + 1
    assert end.queue_us >= 0


def test_shares_of_all_pictures_are_the_time_of_all_calls(shared_engine: DenoiseEngine) -> None:
    before = shared_engine.figures().counts
    painters = [Painter(shared_engine, settings).submit() for settings, _ in COMPANY]
    total_us = sum(painter.wait().end.accelerator_us for painter in painters)
    after = shared_engine.figures().counts
    seconds = sum(after.seconds.values()) - sum(before.seconds.values())
    assert total_us == pytest.approx(seconds * 1e6, abs=len(painters))


def test_a_negative_condition_is_not_computed_where_guidance_is_one(engine: DenoiseEngine) -> None:
    given = Painter(engine, replace(PLAIN, guidance=1.0)).submit().wait()
    none = Painter(engine, replace(PLAIN, guidance=1.0), negative=None).submit().wait()
    assert np.array_equal(given.latent, none.latent)


@pytest.mark.parametrize(("every", "steps"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4]), (5, [5]), (6, []), (7, []), (0, [])])
@pytest.mark.parametrize("sampler", ["euler", "heun"])
def test_previews_come_at_every_kth_step_and_change_nothing(
    engine: DenoiseEngine, every: int, steps: list[int], sampler: str
) -> None:
    plain = draw(engine, sampler=sampler)
    painter = draw(engine, sampler=sampler, preview_every=every, max_previews_per_s=1e9)
    assert [event.step for event in painter.previews] == steps
    assert all(event.clean is not None and np.isfinite(event.clean).all() for event in painter.previews)
    assert np.array_equal(painter.latent, plain.latent)


def test_a_client_may_write_into_its_preview(engine: DenoiseEngine) -> None:
    def scribble(event: DrawEvent | DrawFailure) -> None:
        if isinstance(event, DrawEvent) and event.clean is not None and event.end is None:
            event.clean[:] = 99.0

    for sampler in SAMPLERS:
        plain = draw(engine, sampler=sampler)
        settings = replace(PLAIN, sampler=sampler, preview_every=1, max_previews_per_s=1e9)
        painter = Painter(engine, settings, on_event=scribble).submit().wait()
        assert np.array_equal(painter.latent, plain.latent)


def test_previews_come_no_faster_than_their_rate(engine: DenoiseEngine) -> None:
    assert [event.step for event in draw(engine, preview_every=2, max_previews_per_s=0.001).previews] == [2]


def test_a_small_picture_overtakes_large_ones_that_take_all_places_of_their_size(engine: DenoiseEngine) -> None:
    large = [Painter(engine, replace(PLAIN, steps=50, width_px=128, height_px=128)).submit() for _ in range(9)]
    small = draw(engine, steps=4)
    assert small.end.reason == "done"
    assert not any(painter.ended.is_set() for painter in large)
    for painter in large:
        painter.cancel()
        painter.wait()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"width_px": 0}, "width = 0 px; limit: a multiple of 16 px"),
        ({"width_px": -16}, "width = -16 px"),
        (
            {"height_px": 72},
            "height = 72 px; limit: a multiple of 16 px with this checkpoint; fix: ask for",
        ),
        ({"steps": 0}, "steps = 0; limit: 1 to 1000"),
        ({"steps": 1001}, "steps = 1001"),
        ({"guidance": math.nan}, "guidance = nan; limit: 1 or more"),
        ({"guidance": math.inf}, "guidance = inf"),
        ({"guidance": 0.5}, "guidance = 0.5"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": 2**63}, "seed = 9223372036854775808"),
        ({"image_index": -1}, "image_index = -1"),
        ({"preview_every": -1}, "preview_every = -1"),
        ({"max_previews_per_s": 0.0}, "max_previews_per_s = 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_the_limit(
    engine: DenoiseEngine, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidRequest, match=text):
        Painter(engine, replace(PLAIN, **changes)).submit()


@pytest.mark.parametrize(
    ("states", "text"),
    [
        (np.zeros((TOKENS, WIDTH - 1), dtype=np.float32), r"float32 \[20, 23\]; limit: float32 \[20, 24\]"),
        (np.zeros((TOKENS, WIDTH)), "float64"),
        (np.full((TOKENS, WIDTH), np.nan, dtype=np.float32), "not finite"),
    ],
)
def test_text_that_does_not_fit_is_refused(engine: DenoiseEngine, states: Any, text: str) -> None:
    with pytest.raises(InvalidRequest, match=f"the prompt's text states.*{text}"):
        Painter(engine, prompt=Condition(states=states)).submit()
    with pytest.raises(InvalidRequest, match=f"the negative prompt's text states.*{text}"):
        Painter(engine, negative=Condition(states=states)).submit()


def test_guidance_needs_a_negative_condition(engine: DenoiseEngine) -> None:
    with pytest.raises(InvalidRequest, match="guidance = 3 has no negative condition; limit: none only with guidance"):
        Painter(engine, negative=None).submit()


def test_every_figure_has_a_value(engine: DenoiseEngine) -> None:
    draw(engine)
    figures = engine.figures()
    for figure in DRAW_FIGURES:
        values = figures.values(figure.name)
        assert values and (set(values) == {""}) == (not figure.label), figure.name
    assert 0 < figures.values("proteus_draw_batch_occupancy")[""] <= 1


def test_figures_tell_who_takes_turns_and_who_waits(engine: DenoiseEngine) -> None:
    holding, gate = held(engine)
    painters = [Painter(engine).submit() for _ in range(5)]
    waiting = engine.figures().values("proteus_draw_waiting")
    gate.opened.set()
    for painter in [holding, *painters]:
        painter.wait()
    assert waiting == {"media": 5, "batch": 0}


def test_the_watch_of_engines_watches_this_one(denoiser_folder: Path) -> None:
    now_s = [0.0]
    engine, gate = DenoiseEngine(denoiser_folder, manifest_of(), engine_limits()), Gate()
    watch = EngineWatch(engine, clock_s=lambda: now_s[0])
    assert not watch.stands_still()
    painter = Painter(engine, replace(PLAIN, preview_every=1), on_event=gate).submit()
    assert gate.reached.wait(60)
    assert not watch.stands_still()
    now_s[0] += 1000.0
    assert watch.stands_still()
    gate.opened.set()
    painter.wait()
    assert not watch.stands_still()
    engine.close()
    assert watch.stands_still()


def test_a_deadline_is_to_begin(engine: DenoiseEngine) -> None:
    painter = Painter(engine, deadline_s=time.monotonic() + 60).submit().wait()
    assert painter.end.reason == "done"
