from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proteus.families.llava import LlavaFamily, UnsupportedCheckpoint

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
