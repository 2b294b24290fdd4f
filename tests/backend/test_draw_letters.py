from __future__ import annotations

import os

import numpy as np

from proteus.backend.draw_letters import DrawLetter, pack, unpack
from proteus.backend.mailbox import Letter
from proteus.errors import QueueFull
from proteus.generation.task import DrawEnd, DrawEvent

END = DrawEnd(reason="done", queue_us=1, denoise_us=2, evaluations=40, branches=2, accelerator_us=3)
CANCELLED = DrawEnd(reason="cancelled", queue_us=1, denoise_us=0, evaluations=0, branches=2, accelerator_us=0)


def latent(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height).standard_normal((4, height, width), dtype=np.float32)


def arrived(letters: list[DrawLetter]) -> list[DrawLetter]:
    return list(unpack(*pack(letters), "denoiser"))


def test_events_survive_the_way_with_every_bit_of_their_latents() -> None:
    sent = [
        Letter(os.urandom(16), DrawEvent(step=5, steps=20, clean=latent(8, 12))),
        Letter(os.urandom(16), DrawEvent(step=0, steps=4, clean=None, end=CANCELLED)),
        Letter(os.urandom(16), DrawEvent(step=20, steps=20, clean=latent(2, 2)[:, ::-1], end=END)),
    ]
    for before, after in zip(sent, arrived(sent), strict=True):
        one, other = before.content, after.content
        assert isinstance(one, DrawEvent) and isinstance(other, DrawEvent)
        assert (before.request_key, one.step, one.steps, one.end) == (
            after.request_key,
            other.step,
            other.steps,
            other.end,
        )
        assert (one.clean is None) == (other.clean is None)
        assert one.clean is None or np.array_equal(one.clean, other.clean)


def test_nothing_but_ends_and_errors_carries_no_numbers() -> None:
    error = QueueFull("full", limit="max_queue = 1", fix="later")
    document, latents = pack([Letter(b"key", error), Letter(b"end", DrawEvent(step=1, steps=4, clean=None))])
    assert latents.size == 0
    failed, _ = unpack(document, latents, "denoiser")
    assert type(failed.content) is QueueFull
    assert str(failed.content) == str(error)
    assert arrived([]) == []
