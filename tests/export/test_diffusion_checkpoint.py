"""Folders in diffusers' layout that cannot be exported are refused before anything slow, by file, key and value."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from export.__main__ import main
from export.diffusion_checkpoint import load_parts, read_draw_checkpoint
from proteus.families.checkpoint import UnsupportedCheckpoint
from tests import tiny_diffusers

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module", params=["sd15", "sd3", "flux"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return getattr(tiny_diffusers, request.param)(tmp_path_factory.mktemp("made") / request.param)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_diffusers.sd15(tmp_path_factory.mktemp("sound") / "sd15")


def edit(file: str, **values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        document = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps({**document, **values}))

    return change


def remove(file: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).unlink()


def pickled(folder: Path) -> None:
    (folder / "unet/diffusion_pytorch_model.safetensors").rename(folder / "unet/diffusion_pytorch_model.bin")


def lose_weight(folder: Path) -> None:
    path = folder / "unet/diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    del weights["conv_in.weight"]
    save_file(weights, path)


def shards(weight_map: object) -> Callable[[Path], None]:
    """The UNet's weights as an index names them; the file itself lies beside it under the name "part"."""

    def change(folder: Path) -> None:
        (folder / "unet/diffusion_pytorch_model.safetensors").rename(folder / "unet/part")
        (folder / "unet/diffusion_pytorch_model.safetensors.index.json").write_text(
            weight_map if isinstance(weight_map, str) else json.dumps({"weight_map": weight_map})
        )

    return change


def twice(folder: Path) -> None:
    (folder / "unet/diffusion_pytorch_model.safetensors.index.json").write_text('{"weight_map": {}}')


def of_another_library(folder: Path) -> None:
    weights = folder / "text_encoder/model.safetensors"
    weights.rename(folder / "text_encoder/diffusion_pytorch_model.safetensors")


UNET, VAE, SCHEDULER = "unet/config.json", "vae/config.json", "scheduler/scheduler_config.json"
BROKEN = {
    "another pipeline": (
        edit("model_index.json", _class_name="StableDiffusionXLPipeline"),
        "model_index.json: _class_name = 'StableDiffusionXLPipeline'; limit: known are StableDiffusionPipeline, ",
    ),
    "another text encoder": (
        edit("model_index.json", text_encoder=["transformers", "BertModel"]),
        "text_encoder = ['transformers', 'BertModel']; limit: known are CLIPTextModel",
    ),
    "another autoencoder": (
        edit("model_index.json", vae=["diffusers", "AutoencoderTiny"]),
        "vae = ['diffusers', 'AutoencoderTiny']; limit: known are AutoencoderKL",
    ),
    "a part that is null": (
        edit("model_index.json", unet=[None, None]),
        "unet = [None, None]; limit: known are UNet2D",
    ),
    "inpainting": (edit(UNET, in_channels=9), "in_channels = 9; limit: 4, the vae's latent_channels"),
    "learned variance": (edit(UNET, out_channels=8), "out_channels = 8; limit: 4"),
    "classes": (edit(UNET, class_embed_type="timestep"), "class_embed_type = 'timestep'; limit: null"),
    "SDXL's extra inputs": (edit(UNET, addition_embed_type="text_time"), "addition_embed_type = 'text_time'"),
    "guidance in the timestep": (edit(UNET, time_cond_proj_dim=256), "time_cond_proj_dim = 256; limit: null"),
    "latents of other means": (edit(VAE, latents_mean=[0.1] * 4), "latents_mean = [0.1, 0.1, 0.1, 0.1]; limit: null"),
    "a scale of nothing": (edit(VAE, scaling_factor=0), "scaling_factor = 0"),
    "a scale that is no number": (edit(VAE, scaling_factor="big"), "scaling_factor = 'big'; limit: a number"),
    "prediction": (edit(SCHEDULER, prediction_type="score"), "prediction_type = 'score'; limit: known are epsilon"),
    "schedule": (edit(SCHEDULER, beta_schedule="sigmoid"), "beta_schedule = 'sigmoid'"),
    "no scheduler": (remove(SCHEDULER), "scheduler/scheduler_config.json cannot be read"),
    "no config": (remove(UNET), "unet/config.json cannot be read"),
    "no weights": (remove("vae/diffusion_pytorch_model.safetensors"), "vae has no diffusion_pytorch_model.safetensors"),
    "an index that is no JSON": (shards("{"), "index.json is not JSON"),
    "an index of nothing": (shards({}), "weight_map = {}; limit: names of files beside it"),
    "an index that is no object": (shards([1]), "weight_map = [1]; limit: an object"),
    "an index of numbers": (shards({"a": 1}), "weight_map = 1; limit: names of files beside it"),
    "an index that leads out": (shards({"a": "../vae/x"}), "weight_map = '../vae/x'; limit: names of files beside it"),
    "an index of what is missing": (shards({"a": "b", "c": "part"}), "names files that are not there: b"),
    "weights twice": (twice, "unet has its weights twice: diffusion_pytorch_model.safetensors and "),
    "weights of another library": (of_another_library, "text_encoder has no model.safetensors, only diffusion_pyto"),
    "pickled weights": (pickled, "only diffusion_pytorch_model.bin; limit: safetensors of this name only"),
}


@pytest.mark.parametrize("case", list(BROKEN))
def test_folder_that_cannot_be_exported_is_refused_by_name(
    case: str, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(sound, tmp_path / "folder"))
    change, message = BROKEN[case]
    change(folder)
    assert main([str(folder), "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert printed.splitlines()[-1].startswith("unsupported_checkpoint: ") and message in printed
    assert "loading the weights" not in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lose_weight, r"unet lacks 1 weights: conv_in.weight; fix: "),
        (edit(UNET, block_out_channels=[16, 40]), r"unet cannot be loaded \(.*shape"),
        (edit("text_encoder/config.json", hidden_size=0), r"text_encoder cannot be loaded \("),
        (edit("text_encoder/config.json", hidden_size=-1), r"text_encoder cannot be loaded \(.*hidden size"),
        (edit("text_encoder/config.json", dtype="x"), r"text_encoder cannot be loaded \(.*no attribute 'x'"),
        (
            edit("text_encoder/config.json", attention_dropout="x"),
            r"text_encoder cannot be loaded \(.*attention_dropout",
        ),
        (edit("text_encoder/config.json", num_hidden_layers=3), r"text_encoder lacks \d+ weights: "),
        (
            remove("tokenizer/tokenizer.json"),
            "tokenizer has no vocabulary; limit: known are tokenizer.json, vocab.json",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    change: Callable[[Path], None], message: str, sound: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(sound, tmp_path / "folder"))
    change(folder)
    with pytest.raises(UnsupportedCheckpoint, match=message):
        load_parts(read_draw_checkpoint(folder))


def test_transformer_with_another_schedule_than_flow_is_refused(tmp_path: Path) -> None:
    folder = tiny_diffusers.sd3(tmp_path / "sd3")
    edit(SCHEDULER, _class_name="DDIMScheduler", prediction_type="epsilon")(folder)
    with pytest.raises(UnsupportedCheckpoint, match="_class_name = 'DDIMScheduler'; limit: a flow schedule"):
        read_draw_checkpoint(folder)


def test_revision_names_all_that_a_picture_depends_on(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "folder"))
    before = read_draw_checkpoint(folder).revision()
    edit("model_index.json", _diffusers_version="0.0")(folder)
    assert read_draw_checkpoint(folder).revision() == before
    seen = {before}
    for file in (SCHEDULER, VAE, "tokenizer/tokenizer_config.json", "text_encoder/config.json"):
        edit(file, note="another")(folder)
        seen.add(read_draw_checkpoint(folder).revision())
    assert len(seen) == 5


def test_parts_that_draw_nothing_are_told(sound: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sound, tmp_path / "folder"))
    edit(
        "model_index.json",
        safety_checker=["stable_diffusion", "StableDiffusionSafetyChecker"],
        feature_extractor=["transformers", "CLIPImageProcessor"],
    )(folder)
    assert sorted(read_draw_checkpoint(folder).left_out) == ["feature_extractor", "safety_checker"]


def test_vocabulary_may_be_in_the_two_files_of_older_folders(sound: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sound, tmp_path / "folder"))
    model = json.loads((folder / "tokenizer/tokenizer.json").read_text())["model"]
    (folder / "tokenizer/vocab.json").write_text(json.dumps(model["vocab"]))
    merges = (pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"])
    (folder / "tokenizer/merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    remove("tokenizer/tokenizer.json")(folder)
    texts = ["a red circle", "Zebras & 17 squares"]
    old, new = (load_parts(read_draw_checkpoint(path)).tokenizers[0](texts).input_ids for path in (folder, sound))
    assert old == new


def test_names_and_folders_that_nobody_reads_are_left_alone(sound: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sound, tmp_path / "folder"))
    before = read_draw_checkpoint(folder)
    edit("model_index.json", **{"": ["diffusers", "Nothing"]})(folder)
    (folder / "tokenizer" / "old.json").mkdir()
    os.mkfifo(folder / "tokenizer" / "pipe.txt")
    after = read_draw_checkpoint(folder)
    assert after.revision() == before.revision()
    assert after.text_files() == before.text_files()


def test_a_place_that_cannot_be_written_to_is_named(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(sound), "--out", "/proc/nowhere/out"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "[Errno 2] No such file or directory: '/proc/nowhere'"
