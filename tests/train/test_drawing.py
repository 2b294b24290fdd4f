"""Training the drawing checkpoint: deterministic examples, runs that go on, a checkpoint that diffusers loads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionPipeline

from export.train_draw import pictures
from export.train_draw.denoiser import Examples, token_ids, train_denoiser
from export.train_draw.evaluate import evaluate, reconstruction, table
from export.train_draw.save import save_checkpoint
from export.train_draw.tokens import MAX_TOKENS, build_tokenizer
from export.train_draw.vae import LATENT_CHANNELS, decode, encode, to_pixels, to_tensor, train_vae
from export.world.wish import drawing

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """One thread; batches of 8 and 4 pictures, and 4 steps for a picture that is judged."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("export.train_draw.denoiser.BATCH", 8)
        patch.setattr("export.train_draw.vae.BATCH", 4)
        patch.setattr("export.train_draw.evaluate.STEPS", 4)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run with 64 pictures: one step of the autoencoder, one of the denoiser."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "SHARD", 64)
        yield tmp_path_factory.mktemp("draw")


@pytest.fixture(scope="module")
def vae(folder: Path):
    return train_vae(folder, steps=2, count=64)


@pytest.fixture(scope="module")
def examples(folder: Path, vae) -> Examples:
    return Examples(folder / "pictures", vae, 64)


def test_the_tokenizer_knows_every_word_of_the_world_and_is_always_the_same() -> None:
    tokenizer = build_tokenizer()
    ids = token_ids(tokenizer, ["a red circle at the top left, grey background", ""])
    assert ids.shape == (2, MAX_TOKENS)
    words = [tokenizer.decode(index) for index in ids[0][1:10]]
    assert " ".join(words) == "a red circle at the top left , grey"
    assert torch.equal(ids, token_ids(build_tokenizer(), ["a red circle at the top left, grey background", ""]))


def test_pixels_survive_the_way_to_a_tensor_and_back() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
    assert np.array_equal(to_pixels(to_tensor(picture)), picture)


def test_a_batch_is_a_function_of_the_step(examples: Examples) -> None:
    codes, prompts = examples.batch(3)
    again, same = examples.batch(3)
    assert torch.equal(codes, again)
    assert prompts == same
    assert [tuple(examples.batch(step)[0].shape[2:]) for step in (3, 7, 11, 4)] == [(8, 12), (12, 8), (12, 12), (8, 8)]


def test_training_never_takes_the_seeds_of_unseen_prompts() -> None:
    trained = {(size, scene.seed) for size in pictures.SIZES for scene in pictures.scenes("train", size, range(20))}
    unseen = range(pictures.UNSEEN_SEED, pictures.UNSEEN_SEED + 20)
    assert not trained & {
        (size, scene.seed) for size in pictures.SIZES for scene in pictures.scenes("train", size, unseen)
    }
    assert drawing("train", 0) != drawing("train", pictures.UNSEEN_SEED)


def test_a_run_goes_on_where_it_stopped(examples: Examples, tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    train_denoiser(tmp_path, tokenizer, examples, LATENT_CHANNELS, steps=1)
    drawer = train_denoiser(tmp_path, tokenizer, examples, LATENT_CHANNELS, steps=2)
    state = torch.load(tmp_path / "denoiser.pt", weights_only=True)
    assert state["step"] == 2
    assert torch.equal(state["model"]["mean.unet.conv_in.weight"], drawer.mean["unet"].conv_in.weight)


def test_a_saved_checkpoint_is_a_pipeline_that_is_judged(folder: Path, vae, examples: Examples, tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    drawer = train_denoiser(tmp_path, tokenizer, examples, LATENT_CHANNELS, steps=1)
    save_checkpoint(tmp_path / "out", drawer, vae, tokenizer)
    pipeline = StableDiffusionPipeline.from_pretrained(tmp_path / "out", local_files_only=True)
    assert pipeline.scheduler.config.prediction_type == "v_prediction"
    assert pipeline.vae.config.scaling_factor == vae.config.scaling_factor
    for name, tensor in drawer.mean["unet"].state_dict().items():
        assert torch.equal(pipeline.unet.state_dict()[name].float(), tensor.half().float()), name
    rows = evaluate(tmp_path / "out", 4)
    assert rows["unseen prompts, 64x64"].pictures == 4
    assert table(rows).row_count == len(rows)


def test_the_autoencoder_is_judged_on_what_it_keeps(vae) -> None:
    kept = reconstruction(vae, "heldout", pictures.SIZES[0], 8)
    assert kept.pictures == 8
    codes = encode(vae, np.zeros((1, 64, 96, 3), np.uint8))
    assert codes.shape == (1, LATENT_CHANNELS, 8, 12)
    assert decode(vae, codes).shape == (1, 64, 96, 3)
