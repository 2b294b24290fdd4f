"""Mistral3 as transformers counts it."""

from __future__ import annotations

from tests.oracle.families.pixtral import RowCase, tiny

CASES = (
    RowCase(
        name="mistral3",
        family="mistral3",
        files=tiny("Mistral-Small-3.1-24B"),
        cell_px=28,
        longest_px=1540,
    ),
)
