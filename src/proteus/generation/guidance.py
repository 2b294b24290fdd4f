"""Guidance branches: how many rows a picture has in a call, and one prediction out of two."""

from __future__ import annotations

from proteus.generation.task import Floats


def branches(guidance: float, embedded: bool) -> int:
    """1 without guidance, or where the denoiser takes guidance as an input (`embedded`); 2 otherwise."""
    return 1 if embedded or guidance == 1 else 2


def combine(prompt: Floats, negative: Floats, guidance: float) -> Floats:
    """The prediction to step with, from those of the two branches; float32, as diffusers computes it."""
    return negative + guidance * (prompt - negative)
