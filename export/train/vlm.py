"""Second training: connector, decoder and tower together, on questions about the drawn world.

Several question-answer turns share one picture in one sequence. Most sequences hold *separate* turns: each sees the
picture and itself only, at the positions it would have alone, so that every turn is trained as the first question is
asked. The rest hold one plain conversation, or two pictures. A few turns see no picture, for the baseline.
B sequences, S tokens, N visual tokens a picture.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, PreTrainedTokenizerFast

from export.train.data import GRID, Pictures
from export.train.evaluate import held_out_accuracy
from export.train.muon import optimizer_for
from export.train.run import Run, pace
from export.train.save import save_checkpoint
from export.train.tokens import ASSISTANT, BOS, DESCRIBE, END, IMAGE, USER
from export.train.tower import DenseTower, dense_targets, normalise, tower_config
from export.world.questions import Question, caption, questions, which_picture
from export.world.scene import scene

BATCH, TURNS = 32, 8
_FROZEN_STEPS = 200  # the connector finds its feet before the tower moves
_CONVERSATION_SHARE, _BLIND_SHARE, _PAIR_EVERY = 0.2, 0.05, 6
_DENSE_WEIGHT, _IGNORE = 0.1, -100
_HARD = {"read": 3, "count": 2, "presence": 2, "chart": 2, "small": 2, "place": 2}  # asked this many times as often


def vlm_config(tokenizer: PreTrainedTokenizerFast) -> LlavaConfig:
    text = LlamaConfig(
        vocab_size=512,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlavaConfig(
        vision_config=tower_config(),
        text_config=text,
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        image_seq_length=GRID * GRID,
        tie_word_embeddings=True,
    )


@dataclass(slots=True)
class Sequence:
    """One row of a batch while it is put together; a group of -1 marks tokens that every turn sees."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    blind: list[bool] = field(default_factory=list)  # does not see visual tokens
    labels: list[int] = field(default_factory=list)

    def add(self, ids: list[int], position: int, group: int, *, learn: bool = False, blind: bool = False) -> int:
        self.ids += ids
        self.positions += range(position, position + len(ids))
        self.groups += [group] * len(ids)
        self.blind += [blind] * len(ids)
        self.labels += ids if learn else [_IGNORE] * len(ids)
        return position + len(ids)


class Turns:
    """Makes batches of token ids, positions, masks and labels from seeds."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        special = tokenizer.convert_tokens_to_ids
        self.image_id, self.pad_id = special(IMAGE), tokenizer.pad_token_id
        self._bos, self._user, self._assistant, self._end = (special(name) for name in (BOS, USER, ASSISTANT, END))

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def sequence(self, asked: list[Question], pictures: int, rng: random.Random) -> Sequence:
        row = Sequence()
        start = row.add([self._bos, self._user] + [self.image_id] * (GRID * GRID * pictures), 0, -1)
        conversation = rng.random() < _CONVERSATION_SHARE
        position = start
        for group, question in enumerate(asked):
            blind = not conversation and rng.random() < _BLIND_SHARE
            if not conversation:
                position = 2 if blind else start
            opening = [self._user] if conversation and group else []
            ask = opening + self._encode(question.text) + [self._end, self._assistant]
            group_id = 0 if conversation else group
            position = row.add(ask, position, group_id, blind=blind)
            answer = self._encode(question.answer) + [self._end]
            position = row.add(answer, position, group_id, learn=True, blind=blind)
        return row

    def batch(self, rows: list[Sequence]) -> dict[str, Tensor]:
        """ids, position_ids, labels (B, S) and the additive attention mask (B, 1, S, S)."""
        length = max(len(row.ids) for row in rows)

        def padded(name: str, fill: int) -> Tensor:
            return torch.tensor([[*getattr(row, name), *[fill] * (length - len(row.ids))] for row in rows])

        ids, groups, blind = padded("ids", self.pad_id), padded("groups", -2), padded("blind", 0).bool()
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        same = (groups[:, :, None] == groups[:, None, :]) | (groups[:, None, :] == -1)
        hidden = blind[:, :, None] & (ids == self.image_id)[:, None, :]
        seen = (causal & same & ~hidden) | torch.eye(length, dtype=torch.bool)
        mask = torch.zeros(seen.shape).masked_fill_(~seen, torch.finfo(torch.float32).min)[:, None]
        return {
            "ids": ids,
            "position_ids": padded("positions", 0),
            "labels": padded("labels", _IGNORE),
            "mask": mask,
        }

    def asked(self, seed: int, rng: random.Random) -> list[Question]:
        """TURNS different questions of one training scene, hard types more often, now and then a caption."""
        scene_ = scene("train", seed)
        pool = questions(scene_, rng)
        keyed = sorted(pool, key=lambda question: rng.random() ** (1 / _HARD.get(question.type, 1)), reverse=True)
        chosen = keyed[:TURNS]
        if rng.random() < 0.3:
            chosen[-1] = Question(type="caption", text=rng.choice(DESCRIBE), answer=caption(scene_))
        rng.shuffle(chosen)
        return chosen


def single_picture_batch(turns: Turns, seeds: np.ndarray, rng: random.Random) -> dict[str, Tensor]:
    return turns.batch([turns.sequence(turns.asked(int(seed), rng), 1, rng) for seed in seeds])


def pair_batch(turns: Turns, seeds: np.ndarray, rng: random.Random) -> dict[str, Tensor]:
    """`seeds` taken two by two; four questions a pair, each true for these two pictures in this order."""
    rows = []
    for first, second in seeds.reshape(-1, 2):
        scenes = scene("train", int(first)), scene("train", int(second))
        found = [which_picture(*scenes, rng) for _ in range(4)]
        asked = [question for question in found if question is not None]
        rows.append(turns.sequence(asked, 2, rng))
    return turns.batch(rows)


def vlm_loss(model: LlavaForConditionalGeneration, features: Tensor, batch: dict[str, Tensor], image_id: int) -> Tensor:
    """Cross entropy of the answers' tokens, given the tower's features (pictures, N, width)."""
    visual = model.model.multi_modal_projector(features)
    embeds = model.get_input_embeddings()(batch["ids"])
    where = (batch["ids"] == image_id)[..., None].expand_as(embeds)
    embeds = embeds.masked_scatter(where, visual)
    hidden = model.model.language_model(
        inputs_embeds=embeds, attention_mask=batch["mask"], position_ids=batch["position_ids"], use_cache=False
    ).last_hidden_state
    targets = batch["labels"][:, 1:]
    learnt = targets != _IGNORE
    return cross_entropy(model.lm_head(hidden[:, :-1][learnt]), targets[learnt])


class Trainee(nn.Module):
    """The whole LLaVA plus the tower's dense heads, which keep the tower honest while it is trained on words."""

    def __init__(self, vlm: LlavaForConditionalGeneration, dense: DenseTower) -> None:
        super().__init__()
        self.vlm = vlm
        self.dense = dense


def fresh(tokenizer: PreTrainedTokenizerFast, dense: DenseTower) -> Trainee:
    """The trained tower in front of a connector and a decoder that know nothing yet."""
    torch.manual_seed(1)
    vlm = LlavaForConditionalGeneration(vlm_config(tokenizer))
    vlm.model.vision_tower = dense.tower
    return Trainee(vlm, dense)


def from_checkpoint(checkpoint: Path) -> Trainee:
    """A saved model to go on from; the dense heads, which a checkpoint has not, start anew."""
    vlm = LlavaForConditionalGeneration.from_pretrained(checkpoint)
    return Trainee(vlm, DenseTower(vlm.model.vision_tower))


def train_vlm(
    folder: Path,
    out: Path,
    tokenizer: PreTrainedTokenizerFast,
    trainee: Trainee,
    pictures: Pictures,
    *,
    steps: int,
    log_every: int = 250,
    per_type: int = 50,
) -> LlavaForConditionalGeneration:
    """Train, or go on from `folder/vlm.pt`, up to `steps`.

    Every `log_every` steps it prints held-out accuracy per question type and saves: the run's state in `folder`, the
    checkpoint in `out`.
    """
    vlm, dense = trainee.vlm, trainee.dense
    optimizer = optimizer_for(trainee, matrix_lr=0.01, other_lr=1.5e-3)
    run = Run(folder / "vlm.pt", trainee, optimizer)
    turns = Turns(tokenizer)
    started = time.monotonic()
    for step in run.steps(steps, "all"):
        optimizer.set_pace(pace(step, steps))
        rng, seeds = random.Random(step), np.random.default_rng(step).integers(0, pictures.count, BATCH)
        paired = step % _PAIR_EVERY == _PAIR_EVERY - 1
        if paired:
            seeds = _with_shapes(seeds, pictures.count)
        batch = (pair_batch if paired else single_picture_batch)(turns, seeds, rng)
        with torch.set_grad_enabled(step >= _FROZEN_STEPS):
            features = dense.features(normalise(pictures.pixels(seeds)))
        loss = answer_loss = vlm_loss(vlm, features, batch, turns.image_id)
        if step >= _FROZEN_STEPS:
            loss = loss + _DENSE_WEIGHT * dense.loss(features, dense_targets(pictures, seeds))[0]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % log_every == 0 or step + 1 == steps:
            rows = held_out_accuracy(vlm, tokenizer, per_type=per_type, baseline=False)
            words = " ".join(f"{type_} {rows[type_].accuracy:.2f}" for type_ in rows)
            run.log(f"step {step + 1} loss {answer_loss.item():.3f} {words} {time.monotonic() - started:.0f} s")
            run.save()
            save_checkpoint(out, vlm, tokenizer)
    return vlm


def _with_shapes(seeds: np.ndarray, count: int) -> np.ndarray:
    """The next seed whose scene holds shapes, for each seed: charts have nothing that "which picture" asks about."""
    fitting = []
    for seed in seeds:
        while not scene("train", int(seed)).shapes:
            seed = (seed + 1) % count
        fitting.append(seed)
    return np.array(fitting)
