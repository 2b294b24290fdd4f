"""Served answers against transformers on the same checkpoint: token for token, alone, crowded, with two pictures."""

from __future__ import annotations

import io
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoProcessor, LlavaForConditionalGeneration

from export.train.tokens import DESCRIBE
from export.world.draw import draw
from export.world.questions import TYPES, question_of, which_picture
from export.world.scene import scene
from proteus.client import Client
from proteus.deployment import Deployment
from proteus.launcher import Server

pytestmark = pytest.mark.oracle
DEPLOYMENT = Path("deployments/demo.toml")
MAX_TOKENS = 48
CLIENTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One thing to ask, what transformers says to it, and the truth where there is one."""

    pictures: tuple[bytes, ...]
    question: str
    expected: tuple[int, ...]
    prompt_tokens: int
    truth: str | None


class Oracle:
    """transformers on the served checkpoint."""

    def __init__(self, deployment: Deployment) -> None:
        torch.set_num_threads(1)
        self.processor = AutoProcessor.from_pretrained(deployment.checkpoint_path)
        self.model = LlavaForConditionalGeneration.from_pretrained(deployment.checkpoint_path).eval()

    def pair(self, pictures: list[Image.Image], question: str, truth: str | None = None) -> Pair:
        content = [{"type": "image"} for _ in pictures] + [{"type": "text", "text": question}]
        text = self.processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        inputs = self.processor(images=pictures or None, text=text, return_tensors="pt", add_special_tokens=False)
        with torch.no_grad():
            ids = self.model.generate(**inputs, do_sample=False, max_new_tokens=MAX_TOKENS)[0]
        prompt_tokens = inputs["input_ids"].shape[1]
        return Pair(
            pictures=tuple(_png(picture) for picture in pictures),
            question=question,
            expected=tuple(ids[prompt_tokens:].tolist()),
            prompt_tokens=prompt_tokens,
            truth=truth,
        )


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle(Deployment.load(DEPLOYMENT))


@pytest.fixture(scope="module")
def single_pairs(oracle: Oracle) -> list[Pair]:
    """At least 100 questions about held-out pictures: every type, and descriptions, which are long."""
    pairs = []
    for seed in range(40):
        scene_, rng = scene("heldout", seed), random.Random(seed)
        picture = draw(scene_)
        found = [question_of(scene_, type_, rng) for type_ in rng.sample(TYPES, 4)]
        asked = [(question.text, question.answer) for question in found if question]
        asked.append((rng.choice(DESCRIBE), None))
        pairs += [oracle.pair([picture], text, truth) for text, truth in asked]
    assert len(pairs) >= 100
    return pairs


@pytest.fixture(scope="module")
def double_pairs(oracle: Oracle) -> list[Pair]:
    pairs = []
    for seed in range(30):
        scenes = scene("heldout", seed), scene("heldout", seed + 5_000)
        question = which_picture(*scenes, random.Random(seed))
        if question:
            pairs.append(oracle.pair([draw(scene_) for scene_ in scenes], question.text, question.answer))
    assert len(pairs) >= 15
    return pairs


def _check(client: Client, pair: Pair) -> bool:
    """Equal to the oracle in every token and in the bill; returns whether it is true as well."""
    answer = client.ask(pair.question, pair.pictures, max_tokens=MAX_TOKENS)
    assert answer.token_ids == pair.expected
    assert answer.usage.text_tokens + answer.usage.visual_tokens == pair.prompt_tokens
    assert answer.usage.output_tokens == len(pair.expected)
    assert answer.finish_reason == ("length" if len(pair.expected) == MAX_TOKENS else "stop")
    return answer.text.strip() == pair.truth


def test_greedy_answers_equal_transformers_token_for_token(server: Server, single_pairs: list[Pair]) -> None:
    with Client(server.ports.grpc_url) as client:
        right = sum(_check(client, pair) for pair in single_pairs)
    asked = sum(pair.truth is not None for pair in single_pairs)
    assert right / asked > 0.8, f"{right} of {asked} answers are true"


def test_two_pictures_equal_transformers_token_for_token(server: Server, double_pairs: list[Pair]) -> None:
    with Client(server.ports.grpc_url) as client:
        for pair in double_pairs:
            _check(client, pair)


def test_sixteen_clients_in_random_order_change_no_token(
    server: Server, single_pairs: list[Pair], double_pairs: list[Pair]
) -> None:
    work = single_pairs * 2 + double_pairs
    random.Random(0).shuffle(work)
    with Client(server.ports.grpc_url) as client, ThreadPoolExecutor(CLIENTS) as pool:
        assert len(list(pool.map(lambda pair: _check(client, pair), work))) == len(work)


def test_text_without_pictures_equals_transformers(server: Server, oracle: Oracle) -> None:
    with Client(server.ports.grpc_url) as client:
        for text in ("What colour is the circle?", "Hello, how are you?", "Grüße 🙂\n\nsecond line"):
            _check(client, oracle.pair([], text))
