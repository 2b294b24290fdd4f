from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.families.family import EncoderInput, MediaPlan
from tests.families.qwen_folders import ABSENT, family_of, picture_tokens

IMAGES = "preprocessor_config.json:"
SIZES = [
    (336, 336),
    (480, 640),
    (640, 480),
    (1080, 1920),
    (3024, 4032),
    (1, 1),
    (10, 1000),
    (1000, 10),
    (100, 7000),
    (4000, 30),
    (2, 500),
    (0, 1),
]
IDEFICS3 = [
    (2873, 2912),
    (2197, 2227),
    (2197, 2228),
    (2197, 2227),
    (2197, 2227),
    (2873, 2912),
    (845, 857),
    (845, 860),
    (845, 857),
    (845, 860),
    (845, 857),
    None,
]
SMOLVLM2 = [
    (1088, 1127),
    (832, 862),
    (832, 863),
    (832, 862),
    (832, 862),
    (1088, 1127),
    (320, 332),
    (320, 335),
    (320, 332),
    (320, 335),
    (320, 332),
    None,
]


def save_tokenizer(folder: Path, *words: str) -> None:
    """Of the 256 bytes, and of `words`."""
    tokenizer = Tokenizer(models.BPE({letter: at for at, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    ("name", "size", "tokens"),
    [
        *(("Idefics3-8B-Llama3", *case) for case in zip(SIZES, IDEFICS3, strict=True)),
        *(("SmolVLM2-500M-Video-Instruct", *case) for case in zip(SIZES, SMOLVLM2, strict=True)),
        ("SmolVLM-Instruct", (480, 640), (13 * 81, 13 * 81 + 30)),
        ("SmolVLM2-2.2B-Instruct", (480, 640), (13 * 81, 13 * 81 + 30)),
    ],
)
def test_tokens_are_those_of_the_processor(
    tmp_path: Path, name: str, size: tuple[int, int], tokens: tuple[int, int] | None
) -> None:
    assert picture_tokens(family_of(tmp_path, name), *size) == tokens


@pytest.mark.parametrize(("words", "total"), [((), 2228), (("\n\n",), 2227)])
def test_a_blank_line_takes_as_many_tokens_as_the_tokenizer_makes_of_it(
    tmp_path: Path, words: tuple[str, ...], total: int
) -> None:
    save_tokenizer(tmp_path, *words)
    assert family_of(tmp_path, "Idefics3-8B-Llama3").plan_image(640, 480).prompt_tokens == total


def test_a_broken_tokenizer_is_refused_at_load(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UnsupportedCheckpoint, match="is not a tokenizer"):
        family_of(tmp_path, "Idefics3-8B-Llama3")


def test_plan_of_a_wide_picture(tmp_path: Path) -> None:
    layers = 27 * (2 * 676 * (4 * 1152**2 + 2 * 1152 * 4304) + 4 * 676**2 * 1152)
    assert family_of(tmp_path, "Idefics3-8B-Llama3").plan_image(1000, 10) == MediaPlan(
        modality="image",
        visual_tokens=845,
        wrapper_tokens=12,
        encoder_input=EncoderInput(kind="tiles", count=5, rows=364, cols=364),
        patches=5 * 676,
        encoder_flops=5 * (2 * 676 * 588 * 1152 + layers) + 2 * 845 * 4608 * 4096,
        decode_bytes=30_000,
        self_kv_bytes=857 * 2 * 32 * 8 * 128 * 2,
    )


@pytest.mark.parametrize("changes", [{f"{IMAGES}do_image_splitting": False}, {f"{IMAGES}size": {"longest_edge": 300}}])
def test_a_picture_of_one_tile_is_shown_once(tmp_path: Path, changes: dict[str, Any]) -> None:
    plan = family_of(tmp_path, "Idefics3-8B-Llama3", changes).plan_image(250, 250)
    assert (plan.encoder_input.count, plan.visual_tokens, plan.wrapper_tokens) == (1, 169, 3)


@pytest.mark.parametrize(("width_px", "height_px", "count"), [(5000, 100, 7), (100, 5000, 7), (4096, 4096, 37)])
def test_no_side_is_scaled_over_the_cap(tmp_path: Path, width_px: int, height_px: int, count: int) -> None:
    changes = {
        f"{IMAGES}size": {"longest_edge": 5000},
        f"{IMAGES}max_image_size": {"longest_edge": 728},
        "processor_config.json:image_seq_len": 676,
    }
    family = family_of(tmp_path, "Idefics3-8B-Llama3", changes)
    assert family.plan_image(width_px, height_px).encoder_input.count == count


def test_absent_keys_take_the_defaults_of_transformers(tmp_path: Path) -> None:
    absent = {f"{IMAGES}{key}": ABSENT for key in ("size", "max_image_size", "do_image_splitting")}
    absent |= {"processor_config.json": ABSENT, "config.json:scale_factor": ABSENT}
    name = "Idefics3-8B-Llama3"
    assert family_of(tmp_path, name, absent) == family_of(tmp_path, name)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (f"{IMAGES}do_resize", False, "do_resize"),
        (f"{IMAGES}size", {"longest_edge": 364 * 7}, "6 tiles of 364 px"),
        (f"{IMAGES}size", {"height": 364, "width": 364}, "longest_edge"),
        (f"{IMAGES}image_processor_type", "Idefics2ImageProcessor", "image_processor_type"),
        ("config.json:scale_factor", 3, "it divides 26 patches a side"),
        ("processor_config.json:image_seq_len", 64, "image_seq_len"),
    ],
)
def test_settings_that_cannot_be_served_are_refused_by_name(tmp_path: Path, key: str, value: Any, said: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=said):
        family_of(tmp_path, "Idefics3-8B-Llama3", {key: value})
