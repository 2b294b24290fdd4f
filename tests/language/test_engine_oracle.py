"""Greedy answers of the engine, compared with transformers' generate(do_sample=False) token for token."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from proteus.language.engine import OnnxEngine
from proteus.language.messages import Message, PicturePart, TextPart
from proteus.language.prompt import PromptRenderer
from proteus.language.sampling import Sampling
from proteus.language.tokenizer import load_tokenizer
from tests.language.clients import Client, engine_limits

pytestmark = pytest.mark.oracle

NUM_CASES = 36
VISUAL_TOKENS = 9
WORDS = ("what", "colour", "is", "the", "circle", "where", "how", "many", "read", "12", "left", "of", "图", "é", "?")


@dataclass(frozen=True)
class Case:
    messages: list[Message]
    pictures: list[Image.Image]
    max_tokens: int


@dataclass(frozen=True)
class Expected:
    prompt: list[int]
    visual_tokens: np.ndarray[Any, np.dtype[np.float32]] | None
    answer: list[int]
    text: str


def make_case(seed: int) -> Case:
    """0, 1 or 2 pictures among the text, by turns."""
    rng = random.Random(seed)
    pixels = np.random.default_rng(seed).integers(0, 256, (seed % 3, 48, 48, 3), dtype=np.uint8)
    parts: list[TextPart | PicturePart] = [TextPart(" ".join(rng.choices(WORDS, k=rng.randint(1, 12))))]
    for index in range(seed % 3):
        parts.insert(rng.randint(0, len(parts)), PicturePart(index))
    order = iter(range(seed % 3))
    parts = [PicturePart(next(order)) if isinstance(part, PicturePart) else part for part in parts]
    messages = [Message("user", tuple(parts))]
    if seed % 5 == 0:
        messages = [Message("system", (TextPart("be brief"),)), *messages]
    return Case(messages, [Image.fromarray(picture) for picture in pixels], rng.randint(1, 30))


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [make_case(seed) for seed in range(NUM_CASES)]


@pytest.fixture(scope="module")
def expected(cases: list[Case], tiny_checkpoint: Path) -> list[Expected]:
    """What transformers makes of each case: its own processor, encoder and generation loop."""
    import torch
    from transformers import AutoProcessor, LlavaForConditionalGeneration

    model = LlavaForConditionalGeneration.from_pretrained(tiny_checkpoint).eval()
    processor = AutoProcessor.from_pretrained(tiny_checkpoint)

    def answer(case: Case) -> Expected:
        pictures = iter(case.pictures)
        conversation = [
            {
                "role": message.role,
                "content": [
                    {"type": "text", "text": part.text}
                    if isinstance(part, TextPart)
                    else {"type": "image", "image": next(pictures)}
                    for part in message.parts
                ],
            }
            for message in case.messages
        ]
        inputs = processor.apply_chat_template(
            conversation, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        )
        visual_tokens = None
        with torch.no_grad():
            if case.pictures:
                features = model.get_image_features(inputs["pixel_values"]).pooler_output
                visual_tokens = torch.cat(list(features)).reshape(-1, model.config.text_config.hidden_size).numpy()
            ids = model.generate(**inputs, do_sample=False, max_new_tokens=case.max_tokens)[0].tolist()
        prompt = inputs["input_ids"][0].tolist()
        new = ids[len(prompt) :]
        return Expected(prompt, visual_tokens, new, processor.tokenizer.decode(new, skip_special_tokens=True))

    return [answer(case) for case in cases]


@pytest.fixture(scope="module")
def clients_of(cases: list[Case], expected: list[Expected], tiny_checkpoint: Path) -> Any:
    renderer = PromptRenderer.from_checkpoint(tiny_checkpoint)

    def clients(engine: OnnxEngine) -> list[Client]:
        """One for each case: our prompt, and visual tokens from the reference."""
        result = []
        for case, wanted in zip(cases, expected, strict=True):
            prompt = renderer.render(case.messages, [VISUAL_TOKENS] * len(case.pictures))
            assert prompt.input_ids.tolist() == wanted.prompt
            result.append(
                Client(
                    engine,
                    wanted.prompt,
                    Sampling(max_tokens=case.max_tokens),
                    visual_tokens=wanted.visual_tokens,
                    visual_spans=prompt.visual_spans,
                )
            )
        return result

    return clients


@pytest.fixture(scope="module")
def engine(tiny_export: Path, tiny_checkpoint: Path) -> Any:
    engine = OnnxEngine(
        tiny_export / "model_repository" / "llm" / "1",
        load_tokenizer(tiny_checkpoint),
        engine_limits(slots=5, context_tokens=256, max_queue=NUM_CASES),
        revision="tiny",
    )
    yield engine
    engine.check()
    assert engine.num_in_flight == 0
    engine.close()


def compare(clients: list[Client], expected: list[Expected]) -> None:
    for seed, (client, wanted) in enumerate(zip(clients, expected, strict=True)):
        assert client.ids == wanted.answer, f"case {seed}"
        assert client.text == wanted.text, f"case {seed}"


def test_answers_alone_are_those_of_generate(engine: OnnxEngine, clients_of: Any, expected: list[Expected]) -> None:
    clients = clients_of(engine)
    for client in clients:
        client.submit().wait()
    compare(clients, expected)


@pytest.mark.parametrize("seed", range(3))
def test_answers_all_at_once_in_random_order_are_those_of_generate(
    engine: OnnxEngine, clients_of: Any, expected: list[Expected], seed: int
) -> None:
    clients = clients_of(engine)
    for client in random.Random(seed).sample(clients, len(clients)):
        client.submit()
    for client in clients:
        client.wait()
    compare(clients, expected)


def test_both_ways_to_end_are_among_the_answers(engine: OnnxEngine, clients_of: Any, cases: list[Case]) -> None:
    reasons = {client.submit().wait().finish.reason for client in clients_of(engine)}
    assert reasons == {"stop", "length"}
