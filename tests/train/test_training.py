"""Training: separate turns are what they claim, a run goes on where it stopped, a saved checkpoint is the model."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import CLIPVisionModel, LlavaForConditionalGeneration

from export.train.data import DENSE, GRID, Pictures, dense_labels
from export.train.muon import orthogonalise
from export.train.run import pace
from export.train.tokens import ASSISTANT, BOS, END, IMAGE, USER, build_tokenizer
from export.train.tower import DenseTower, normalise, tower_config, train_tower
from export.train.vlm import Turns, fresh, pair_batch, single_picture_batch, train_vlm, vlm_loss
from export.world.scene import COLOURS, SHAPES, scene

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def few_pictures(tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("export.train.data.SHARD", 64)
        yield Pictures(tmp_path_factory.mktemp("pictures"), "train", 64)


def test_separate_turns_learn_what_each_question_alone_would(few_pictures: Pictures) -> None:
    tokenizer = build_tokenizer()
    trainee = fresh(tokenizer, DenseTower(CLIPVisionModel(tower_config()))).eval()
    turns = Turns(tokenizer)
    rng = random.Random(3)
    asked = turns.asked(5, rng)
    row = turns.sequence(asked, 1, random.Random(4))
    assert set(row.groups) != {-1, 0}, "this seed must give separate turns"
    features = trainee.dense.features(normalise(few_pictures.pixels(np.array([5]))))
    together = vlm_loss(trainee.vlm, features, turns.batch([row]), turns.image_id)

    total, tokens = 0.0, 0
    for group, question in enumerate(asked):
        blind = any(b for b, g in zip(row.blind, row.groups, strict=True) if g == group)
        picture = "" if blind else IMAGE * GRID * GRID
        prompt = tokenizer.encode(f"{BOS}{USER}{picture}{question.text}{END}{ASSISTANT}", add_special_tokens=False)
        answer = tokenizer.encode(question.answer + END, add_special_tokens=False)
        ids = torch.tensor([prompt + answer])
        labels = torch.tensor([[-100] * len(prompt) + answer])
        pixel_values = None if blind else normalise(few_pictures.pixels(np.array([5])))
        loss = trainee.vlm(input_ids=ids, pixel_values=pixel_values, labels=labels).loss
        total, tokens = total + loss.item() * len(answer), tokens + len(answer)
    assert together.item() == pytest.approx(total / tokens, rel=1e-4)


def test_a_pair_batch_holds_two_pictures_a_row(few_pictures: Pictures) -> None:
    turns = Turns(build_tokenizer())
    batch = pair_batch(turns, np.arange(8), random.Random(0))
    assert ((batch["ids"] == turns.image_id).sum(1) == 2 * GRID * GRID).all()
    assert len(single_picture_batch(turns, np.arange(8), random.Random(0))["ids"]) == 8


def test_a_run_goes_on_where_it_stopped(few_pictures: Pictures, tmp_path: Path) -> None:
    train_tower(tmp_path, few_pictures, few_pictures, steps=2, log_every=1)
    model = train_tower(tmp_path, few_pictures, few_pictures, steps=3, log_every=1)
    state = torch.load(tmp_path / "tower.pt", weights_only=True)
    assert state["step"] == 3
    assert torch.equal(state["model"]["heads.shape.weight"], model.heads["shape"].weight)


def test_a_saved_checkpoint_is_the_trained_model(few_pictures: Pictures, tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    trainee = fresh(tokenizer, DenseTower(CLIPVisionModel(tower_config())))
    model = train_vlm(tmp_path, tmp_path / "out", tokenizer, trainee, few_pictures, steps=1, per_type=2)
    loaded = LlavaForConditionalGeneration.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(loaded[key], tensor) for key, tensor in model.state_dict().items())
    assert (tmp_path / "out" / "model.safetensors").stat().st_size < 25_000_000


def test_dense_labels_stand_where_the_shapes_stand() -> None:
    scene_ = next(scene("train", seed) for seed in range(99) if scene("train", seed).shapes)
    labels = dense_labels(scene_)
    assert labels.shape == (GRID, GRID, len(DENSE))
    for shape in scene_.shapes:
        row, column = divmod(shape.cell, 3)
        assert labels[2 * row + 1, 2 * column, 0] == 1 + SHAPES.index(shape.shape)
        assert labels[2 * row, 2 * column + 1, 1] == 3 + list(COLOURS).index(shape.colour)


def test_newton_schulz_gives_a_nearly_orthogonal_matrix() -> None:
    values = torch.linalg.svdvals(orthogonalise(torch.randn(64, 192, generator=torch.Generator().manual_seed(0))))
    assert 0.5 < values.min() and values.max() < 1.4


def test_the_pace_rises_stays_and_falls() -> None:
    assert pace(0, 1000) < 0.05 and pace(300, 1000) == 1.0 and pace(999, 1000) <= 0.01
