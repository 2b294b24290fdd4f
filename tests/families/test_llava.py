from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proteus.families.family import EncoderInput, MediaPlan, PlanRefused
from proteus.families.llava import LlavaFamily, UnsupportedCheckpoint
from tests.families.published_folders import load_changed
from tests.families.published_llava import PUBLISHED

CONFIG: dict[str, Any] = {
    "model_type": "llava",
    "image_token_index": 7,
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
    "vision_config": {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14, "hidden_size": 1024},
    "text_config": {"model_type": "llama"},
}
PROCESSOR: dict[str, Any] = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 336},
    "crop_size": {"height": 336, "width": 336},
}


def family(folder: Path, config: dict[str, Any] | None = None, processor: dict[str, Any] | None = None) -> LlavaFamily:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}), encoding="utf-8")
    (folder / "preprocessor_config.json").write_text(json.dumps({**PROCESSOR, **(processor or {})}), encoding="utf-8")
    return LlavaFamily.from_checkpoint(folder)


def test_llava_1_5_has_576_visual_tokens_per_picture(tmp_path: Path) -> None:
    llava = family(tmp_path)
    assert (llava.visual_tokens, llava.feature_width, llava.image_token_id) == (576, 1024, 7)
    assert llava.resize.shortest_edge_px == 336
    assert llava.resize.crop_px == (336, 336)


def test_full_strategy_keeps_the_class_token_and_layers_add_width(tmp_path: Path) -> None:
    llava = family(tmp_path, {"vision_feature_select_strategy": "full", "vision_feature_layer": [-2, -5]})
    assert (llava.visual_tokens, llava.feature_width) == (577, 2048)


def test_sizes_of_older_checkpoints_are_plain_numbers(tmp_path: Path) -> None:
    assert family(tmp_path, processor={"size": 336, "crop_size": 336}) == family(tmp_path)


def test_a_processor_may_squeeze_instead_of_crop(tmp_path: Path) -> None:
    squeezed = family(tmp_path, processor={"size": {"height": 336, "width": 336}, "do_center_crop": False})
    assert (squeezed.resize.size_px, squeezed.resize.crop_px) == ((336, 336), None)


def test_a_processor_without_sizes_has_those_of_its_class(tmp_path: Path) -> None:
    vision = {**CONFIG["vision_config"], "image_size": 224}
    llava = family(tmp_path, {"vision_config": vision}, {"size": None, "crop_size": None})
    assert (llava.resize.shortest_edge_px, llava.resize.crop_px, llava.visual_tokens) == (224, (224, 224), 256)


def test_processor_may_live_in_the_file_of_the_processor(tmp_path: Path) -> None:
    wanted = family(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": PROCESSOR}), encoding="utf-8")
    assert LlavaFamily.from_checkpoint(tmp_path) == wanted


@pytest.mark.parametrize(
    ("config", "processor", "words"),
    [
        ({"model_type": "llava_next"}, {}, ["config.json: model_type = 'llava_next'", "known are llava"]),
        ({"vision_config": {"model_type": "siglip_vision_model"}}, {}, ["siglip_vision_model"]),
        ({"vision_feature_select_strategy": "cls_patch"}, {}, ["vision_feature_select_strategy = 'cls_patch'"]),
        ({"vision_config": {"image_size": "big"}}, {}, ["vision_config.image_size = 'big'", "whole number"]),
        ({}, {"image_processor_type": "SiglipImageProcessor"}, ["image_processor_type = 'SiglipImageProcessor'"]),
        ({}, {"do_pad": True}, ["do_pad = True"]),
        ({}, {"size": {"longest_edge": 336}}, ["size = {'longest_edge': 336}", "shortest_edge"]),
        ({}, {"crop_size": {"height": 224, "width": 224}}, ["(224, 224)", "image_size = 336"]),
        ({}, {"do_center_crop": False}, ["any size", "image_size = 336"]),
        ({}, {"do_resize": False, "do_center_crop": False}, ["any size"]),
        ({}, {"image_std": ["a", "b", "c"]}, ["image_std", "three numbers"]),
        ({}, {"image_mean": [0.5]}, ["image_mean = [0.5]", "three numbers"]),
    ],
)
def test_what_cannot_be_served_is_refused_at_load(
    tmp_path: Path, config: dict[str, Any], processor: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        family(tmp_path, config, processor)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(UnsupportedCheckpoint, match=r"config\.json"):
        LlavaFamily.from_checkpoint(tmp_path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=r"config\.json cannot be read"):
        LlavaFamily.from_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    with pytest.raises(UnsupportedCheckpoint, match=r"preprocessor_config\.json is missing"):
        LlavaFamily.from_checkpoint(tmp_path)


def test_plan_is_the_same_for_every_picture(tmp_path: Path) -> None:
    plan = load_changed(tmp_path, PUBLISHED["LLaVA-1.5-7B"]).plan_image(300, 200)
    layer = 2 * 577 * (4 * 1024**2 + 2 * 1024 * 4096) + 4 * 577**2 * 1024
    assert plan == MediaPlan(
        modality="image",
        visual_tokens=576,
        wrapper_tokens=0,
        encoder_input=EncoderInput(kind="tiles", count=1, rows=336, cols=336),
        patches=576,
        encoder_flops=2 * 576 * 588 * 1024 + 23 * layer + 2 * 576 * (1024 * 4096 + 4096**2),
        decode_bytes=3 * 300 * 200,
        self_kv_bytes=2 * 32 * 576 * 32 * 128 * 2,
    )


def test_a_deeper_feature_and_the_class_token_cost_more(tmp_path: Path) -> None:
    changes = {"config.json: vision_feature_layer": [-1, 3], "config.json: vision_feature_select_strategy": "full"}
    changes["processor_config.json: vision_feature_select_strategy"] = "full"
    plan = load_changed(tmp_path, PUBLISHED["LLaVA-1.5-7B"], changes).plan_image(300, 200)
    layer = 2 * 577 * (4 * 1024**2 + 2 * 1024 * 4096) + 4 * 577**2 * 1024
    assert plan.visual_tokens == 577
    assert plan.encoder_flops == 2 * 576 * 588 * 1024 + 24 * layer + 2 * 577 * (2048 * 4096 + 4096**2)


def test_a_processor_that_counts_otherwise_is_refused_at_load(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCheckpoint, match="575 placeholders"):
        load_changed(tmp_path, PUBLISHED["LLaVA-1.5-7B"], {"processor_config.json: num_additional_image_tokens": 0})


def test_a_picture_without_pixels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused, match="picture of 0x1 px"):
        family(tmp_path).plan_image(0, 1)
