"""What every runtime of the denoiser is held to; a test module gives the fixture `make`, of the runtimes it has."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from proteus.deployment import DeploymentError
from proteus.generation.denoisers import Denoiser
from proteus.generation.task import Condition, Floats
from proteus.manifest import DrawManifest
from tests.generation.denoisers import CHANNELS, POOLED, TOKENS, WIDTH, manifest_of

OF_SCALE = 1e-4
MAX_ROWS = 6
SIZES = ((8, 8), (8, 12), (12, 8))
SUM = manifest_of(pooled_width=POOLED, embedded_guidance=True)
Open = Callable[[Path, DrawManifest], Denoiser]


@dataclass(frozen=True)
class Make:
    """`open` gives a denoiser of a folder with every runtime's file."""

    open: Open
    unet: Path
    sum: Path
    keeps_bits: bool = True  # in any company

    def of_unet(self) -> Denoiser:
        return self.open(self.unet, manifest_of())

    def of_sum(self) -> Denoiser:
        return self.open(self.sum, SUM)


def noise(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Work:
    """Rows of one size with different contents, and what ONNX Runtime predicts of them."""

    latents: Floats
    timesteps: Floats
    states: Floats
    expected: Floats

    @classmethod
    def of(cls, folder: Path, size: tuple[int, int]) -> Work:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = ort.InferenceSession(folder / "denoiser.onnx", options, providers=["CPUExecutionProvider"])
        latents, states = noise(1, MAX_ROWS, CHANNELS, *size), noise(2, MAX_ROWS, TOKENS, WIDTH)
        timesteps = np.linspace(1, 999, MAX_ROWS, dtype=np.float32)
        (expected,) = session.run(None, {"latents": latents, "timestep": timesteps, "text_states": states})
        return cls(latents, timesteps, states, expected)

    def predicted(self, denoiser: Denoiser, first: int, num_rows: int) -> Floats:
        size = self.latents.shape[2:]
        rows = denoiser.rows((size[0], size[1]), num_rows)
        for row in range(num_rows):
            source = first + row
            condition = Condition(states=self.states[source])
            rows.write(row, self.latents[source], self.timesteps[source], [condition], 1.0)
        return denoiser.run(rows).copy()


class DenoiserContract:
    @pytest.mark.parametrize("size", SIZES)
    def test_predictions_are_those_of_the_exported_graph(self, make: Make, size: tuple[int, int]) -> None:
        denoiser, work = make.of_unet(), Work.of(make.unet, size)
        limit = OF_SCALE * float(np.abs(work.expected).max())
        for _ in range(2):  # a call may be put together anew, or kept
            for num_rows in (1, 2, 5, MAX_ROWS):
                predicted = work.predicted(denoiser, MAX_ROWS - num_rows, num_rows)
                assert predicted.shape == work.expected[:num_rows].shape
                assert float(np.abs(predicted - work.expected[MAX_ROWS - num_rows :]).max()) <= limit

    def test_rows_have_the_same_bits_in_any_company_where_a_runtime_says_so(self, make: Make) -> None:
        denoiser, work = make.of_unet(), Work.of(make.unet, SIZES[0])
        whole = work.predicted(denoiser, 0, MAX_ROWS)
        for num_rows in (1, 2, 3):
            for first in range(0, MAX_ROWS + 1 - num_rows, 2):
                same = np.array_equal(work.predicted(denoiser, first, num_rows), whole[first : first + num_rows])
                assert same or not make.keeps_bits

    def test_the_same_call_gives_the_same_bits_every_time(self, make: Make) -> None:
        denoiser = make.of_unet()
        works = [Work.of(make.unet, size) for size in SIZES]
        turns = [[work.predicted(denoiser, 0, 2) for work in works] for _ in range(3)]
        for turn in turns[1:]:
            assert all(np.array_equal(one, other) for one, other in zip(turns[0], turn, strict=True))

    @pytest.mark.parametrize("num_rows", [1, 3])
    def test_every_input_goes_to_its_row(self, make: Make, num_rows: int) -> None:
        denoiser = make.of_sum()
        for turn in range(3):
            rows, expected = denoiser.rows((4, 6), num_rows), []
            for row in range(num_rows):
                seed = 10 * turn + row
                latent = noise(seed, CHANNELS, 4, 6)
                condition = Condition(states=noise(seed + 1, TOKENS, WIDTH), pooled=noise(seed + 2, POOLED))
                rows.write(row, latent, 10.0 * row, [condition], 0.5 + row)
                assert condition.pooled is not None
                expected.append(latent + 10.0 * row + 0.5 + row + condition.states.sum() + condition.pooled.sum())
            assert np.allclose(denoiser.run(rows), np.stack(expected), rtol=0, atol=1e-3)

    def test_one_thread_may_open_it_and_another_run_it(self, make: Make) -> None:
        denoiser, work = make.of_unet(), Work.of(make.unet, SIZES[0])
        predictions: list[Floats] = []
        for _ in range(2):
            thread = threading.Thread(target=lambda: predictions.append(work.predicted(denoiser, 0, 2)))
            thread.start()
            thread.join()
        here = work.predicted(denoiser, 0, 2)
        assert all(np.array_equal(prediction, here) for prediction in predictions)
        assert len(predictions) == 2

    def test_what_takes_other_inputs_than_its_manifest_says_is_refused(self, make: Make) -> None:
        with pytest.raises(DeploymentError, match=r"takes guidance, latents, pooled, .*by its manifest latents, text"):
            make.open(make.sum, manifest_of())
