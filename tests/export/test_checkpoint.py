"""A folder that cannot be exported is refused before anything slow, and the text says what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from export.checkpoint import eos_token_ids, load_model, read_checkpoint
from proteus.families.llava import UnsupportedCheckpoint

pytestmark = pytest.mark.oracle


@pytest.fixture
def folder(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint"))


def change(path: Path, **values: object) -> None:
    """Set keys of a JSON file; a dict value is merged, None removes the key."""
    document = json.loads(path.read_text())
    for key, value in values.items():
        if isinstance(value, dict):
            document[key] = {**document[key], **value}
        elif value is None:
            document.pop(key)
        else:
            document[key] = value
    path.write_text(json.dumps(document))


def only_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def index_without_files(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "../model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json cannot be read"),
    "broken config": (lambda f: (f / "config.json").write_text("{"), "config.json is not JSON"),
    "another model": (lambda f: change(f / "config.json", model_type="qwen2_vl"), "model_type = 'qwen2_vl'; limit"),
    "another decoder": (
        lambda f: change(f / "config.json", text_config={"model_type": "mamba"}),
        "text_config.model_type = 'mamba'; limit: known are llama",
    ),
    "angles that change": (
        lambda f: change(f / "config.json", text_config={"rope_parameters": {"rope_type": "dynamic"}}),
        "rope_type = 'dynamic'; limit: known are default",
    ),
    "no such layer": (
        lambda f: change(f / "config.json", vision_feature_layer=[-1, -4]),
        "vision_feature_layer = [-1, -4]; limit: indices from -3 to 2",
    ),
    "slow tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json is missing; fix: write it with"),
    "broken tokenizer": (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json is no tokenizer"),
    "no placeholder": (
        lambda f: change(f / "config.json", image_token_index=5000),
        "tokenizer.json has no token 5000, the image placeholder",
    ),
    "no template": (lambda f: (f / "chat_template.jinja").unlink(), "has no chat template; fix: add"),
    "pickle": (only_pickle, "only pytorch_model.bin; limit: safetensors only"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors; limit"),
    "shards missing": (
        index_without_files,
        "files that are not there: ../model-00002-of-00002.safetensors, model-00001",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_unusable_folder_is_refused_by_name_and_fix(name: str, folder: Path) -> None:
    spoil, text = BROKEN[name]
    spoil(folder)
    with pytest.raises(UnsupportedCheckpoint) as raised:
        read_checkpoint(folder)
    assert text in str(raised.value)


def test_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCheckpoint, match="is no folder"):
        read_checkpoint(tmp_path / "nothing")


def test_template_may_stand_in_the_tokenizers_config(folder: Path) -> None:
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    change(folder / "tokenizer_config.json", chat_template=template)
    assert read_checkpoint(folder).context_tokens == 512


def test_weights_that_do_not_belong_to_the_config_are_refused(folder: Path) -> None:
    checkpoint = read_checkpoint(folder)
    weights = load_file(folder / "model.safetensors")
    norm = "language_model.model.norm.weight"

    def refused(changed: dict[str, object]) -> str:
        save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(UnsupportedCheckpoint) as raised:
            load_model(checkpoint)
        return str(raised.value)

    assert "lacks 1 weights: model.language_model.norm.weight" in refused(
        {key: value for key, value in weights.items() if key != norm}
    )
    assert "has unknown 1 weights: lora" in refused({**weights, "lora": weights[norm].clone()})
    assert "has wrong sizes of 1 weights: model.language_model.norm.weight" in refused(
        {**weights, norm: weights[norm][:-1].clone()}
    )


def test_buffers_of_old_files_are_not_missed(folder: Path) -> None:
    import torch

    weights = load_file(folder / "model.safetensors")
    weights["vision_tower.vision_model.embeddings.position_ids"] = torch.arange(10)[None]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    load_model(read_checkpoint(folder))


def test_weights_in_several_files_load_alike(folder: Path) -> None:
    want = load_model(read_checkpoint(folder)).state_dict()
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    parts = {
        "model-00001-of-00002.safetensors": list(weights)[::2],
        "model-00002-of-00002.safetensors": list(weights)[1::2],
    }
    for name, keys in parts.items():
        save_file({key: weights[key] for key in keys}, folder / name, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {key: name for name, keys in parts.items() for key in keys}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = read_checkpoint(folder)
    assert [path.name for path in checkpoint.weight_files] == list(parts)
    assert all((value == want[key]).all() for key, value in load_model(checkpoint).state_dict().items())


def test_revision_changes_with_weights_and_with_config(folder: Path) -> None:
    first = read_checkpoint(folder).revision()
    assert read_checkpoint(folder).revision() == first
    change(folder / "config.json", image_seq_length=8)
    second = read_checkpoint(folder).revision()
    weights = load_file(folder / "model.safetensors")
    weights["language_model.model.norm.weight"][0] += 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert len({first, second, read_checkpoint(folder).revision()}) == 3


def test_end_tokens_are_those_of_generate(folder: Path) -> None:
    assert eos_token_ids(load_model(read_checkpoint(folder))) == [2, 7]
    (folder / "generation_config.json").unlink()
    assert eos_token_ids(load_model(read_checkpoint(folder))) == [2]


def test_only_texts_are_served(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("{}")
    (folder / "notes.md").write_text("x")
    names = {path.name for path in read_checkpoint(folder).text_files()}
    assert names == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "preprocessor_config.json",
        "processor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
