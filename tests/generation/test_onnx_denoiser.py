"""The denoiser's rows: what the graph is given and what comes out, for any number of rows."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from proteus.deployment import DeploymentError
from proteus.generation.onnx_denoiser import OnnxDenoiser
from proteus.generation.rows import MAX_KEPT_SIZES
from proteus.generation.task import Condition, Floats
from tests.generation.denoisers import CHANNELS, POOLED, TOKENS, WIDTH, manifest_of, save_sum, save_unlike_alone

Normal = Callable[..., Floats]


@pytest.fixture
def normal() -> Normal:
    generator = np.random.default_rng(0)
    return lambda *shape: generator.standard_normal(shape).astype(np.float32)


def denoiser_of(folder: Path, *, max_rows: int = 6) -> OnnxDenoiser:
    return OnnxDenoiser(folder / "denoiser.onnx", manifest_of(), max_rows=max_rows, threads=1)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 6])
def test_rows_have_the_same_bits_in_any_call_and_place(denoiser_folder: Path, normal: Normal, num_rows: int) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(denoiser_folder / "denoiser.onnx", options, providers=["CPUExecutionProvider"])
    latents, states = normal(6, CHANNELS, 8, 12), normal(6, TOKENS, WIDTH)
    timesteps = np.linspace(1, 999, 6, dtype=np.float32)
    (expected,) = session.run(None, {"latents": latents, "timestep": timesteps, "text_states": states})
    denoiser = denoiser_of(denoiser_folder)
    for first in range(7 - num_rows):
        rows = denoiser.rows((8, 12), num_rows)
        for row in range(num_rows):
            source = first + row
            rows.write(row, latents[source], timesteps[source], [Condition(states=states[source])], 1.0)
        assert np.array_equal(denoiser.run(rows), expected[first : first + num_rows])


def test_a_lone_row_is_run_as_it_is_where_that_changes_no_bit(denoiser_folder: Path) -> None:
    denoiser = denoiser_of(denoiser_folder)
    assert [denoiser.rows((8, 8), number).num_padded for number in (1, 2, 3)] == [0, 0, 0]


def test_a_lone_row_is_run_twice_where_it_would_come_out_otherwise(tmp_path: Path, normal: Normal) -> None:
    save_unlike_alone(tmp_path / "denoiser.onnx")
    denoiser = denoiser_of(tmp_path)
    assert [denoiser.rows((8, 8), number).num_padded for number in (1, 2, 3)] == [1, 0, 0]
    latent = normal(CHANNELS, 8, 8)
    rows = denoiser.rows((8, 8), 1)
    rows.write(0, latent, 500.0, [Condition(states=normal(TOKENS, WIDTH))], 1.0)
    assert np.array_equal(denoiser.run(rows), latent[None])


def test_sizes_in_turns_do_not_disturb_each_other(denoiser_folder: Path, normal: Normal) -> None:
    denoiser = denoiser_of(denoiser_folder)
    given = [
        (size, normal(CHANNELS, *size), [Condition(states=normal(TOKENS, WIDTH)) for _ in range(2)])
        for size in ((8, 8), (12, 8), (16, 16))
    ]

    def predicted() -> list[Floats]:
        answers = []
        for size, latent, conditions in given:
            rows = denoiser.rows(size, 2)
            rows.write(0, latent, 700.0, conditions, 1.0)
            answers.append(denoiser.run(rows).copy())
        return answers

    assert all(np.array_equal(one, other) for one, other in zip(predicted(), predicted(), strict=True))


def test_memory_is_kept_for_the_sizes_asked_for_last_only(denoiser_folder: Path, normal: Normal) -> None:
    denoiser = denoiser_of(denoiser_folder)
    often = denoiser.rows((8, 8), 2)
    forgotten = [weakref.ref(denoiser.rows((8, 10 + 2 * number), rows).latents) for number, rows in ((0, 1), (1, 2))]
    for number in range(2, MAX_KEPT_SIZES + 1):
        denoiser.rows((8, 10 + 2 * number), 2)
        assert denoiser.rows((8, 8), 2) is often
    assert [memory() is None for memory in forgotten] == [True, True]
    latent, conditions = normal(CHANNELS, 8, 10), [Condition(states=normal(TOKENS, WIDTH)) for _ in range(2)]
    predictions = []
    for _ in range(2):
        rows = denoiser.rows((8, 10), 2)
        rows.write(0, latent, 700.0, conditions, 1.0)
        predictions.append(denoiser.run(rows).copy())
        for number in range(1, MAX_KEPT_SIZES + 1):
            denoiser.rows((8, 10 + 2 * number), 2)
    assert np.array_equal(*predictions)


def test_every_input_goes_to_its_row(tmp_path: Path, normal: Normal) -> None:
    manifest = manifest_of(pooled_width=POOLED, embedded_guidance=True)
    denoiser = OnnxDenoiser(save_sum(tmp_path / "denoiser.onnx"), manifest, max_rows=4, threads=1)
    for num_rows in (1, 3):
        rows = denoiser.rows((4, 6), num_rows)
        expected = []
        for row in range(num_rows):
            latent, condition = normal(CHANNELS, 4, 6), Condition(states=normal(TOKENS, WIDTH), pooled=normal(POOLED))
            rows.write(row, latent, 10.0 * row, [condition], 0.5 + row)
            assert condition.pooled is not None
            expected.append(latent + 10.0 * row + 0.5 + row + condition.states.sum() + condition.pooled.sum())
        assert np.allclose(denoiser.run(rows), np.stack(expected), rtol=0, atol=1e-3)


def test_both_branches_of_a_picture_have_its_latent_and_their_own_text(tmp_path: Path, normal: Normal) -> None:
    manifest = manifest_of(pooled_width=POOLED, embedded_guidance=True)
    denoiser = OnnxDenoiser(save_sum(tmp_path / "denoiser.onnx"), manifest, max_rows=4, threads=1)
    zeros, ones = (
        Condition(states=np.full((TOKENS, WIDTH), value, np.float32), pooled=np.zeros(POOLED, np.float32))
        for value in (0.0, 1.0)
    )
    rows = denoiser.rows((4, 4), 2)
    rows.write(0, normal(CHANNELS, 4, 4), 0.0, [ones, zeros], 0.0)
    first, second = denoiser.run(rows)
    assert np.allclose(first - second, TOKENS * WIDTH, rtol=0, atol=1e-3)


def test_a_graph_that_is_not_its_manifests_is_refused(tmp_path: Path) -> None:
    path = save_sum(tmp_path / "denoiser.onnx")
    with pytest.raises(
        DeploymentError,
        match=r"takes guidance, latents, pooled, .*limit: by its manifest latents, text_states, timestep",
    ):
        OnnxDenoiser(path, manifest_of(), max_rows=4, threads=1)


@pytest.mark.parametrize("content", [None, b"", b"no graph"])
def test_a_graph_that_cannot_be_loaded_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "denoiser.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DeploymentError, match=r"denoiser.onnx cannot be loaded; fix: export the checkpoint again"):
        OnnxDenoiser(path, manifest_of(), max_rows=4, threads=1)
