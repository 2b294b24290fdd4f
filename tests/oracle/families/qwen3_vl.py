"""Qwen3-VL as transformers counts it."""

from __future__ import annotations

from tests.oracle.families.qwen2_vl import QwenCase, saved, tiny

VISION = {
    "depth": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 32,
    "deepstack_visual_indexes": [0, 2, 8],
}
HUB = QwenCase(
    name="qwen3-vl",
    family="qwen3_vl",
    files=tiny("Qwen3-VL-8B", VISION),
    cell_px=32,
    edges=(4096, 65_536, 16_777_216, 25_165_824),
    max_frames=768,
)
CASES = (HUB, saved(HUB))
