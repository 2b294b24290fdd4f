"""Mixed traffic against transformers: text and pictures, cancels, classes, tenants, with the prefix cache and without.

Every answer is compared with generate(do_sample=False), token for token; a cancelled one must be the beginning of it.
A case whose reference has two best tokens within float32's error has no right answer and is drawn anew.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proteus.language.engine import OnnxEngine
from proteus.language.generation import Scheduling, Spans
from proteus.language.messages import Message, PicturePart, TextPart
from proteus.language.prompt import PromptRenderer
from proteus.language.sampling import Sampling
from proteus.language.tokenizer import load_tokenizer
from tests.language.clients import Client, engine_limits

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(900)]

NUM_CASES = 500
NUM_PICTURES = 12  # in all: requests share them, and so prefixes
SEEDS = range(5)
CONTEXT_TOKENS = 256
VISUAL_TOKENS = 9  # of each picture
LEAST_GAP = 1e-4  # between the two best logits, whose scale is about 1
WORDS = ("what", "colour", "is", "the", "circle", "where", "how", "many", "read", "12", "left", "of", "图", "é", "?")
SYSTEM = "be brief and say only what is in the picture, never what could be in it"


@dataclass(frozen=True)
class Case:
    prompt: list[int]
    spans: Spans
    rows: np.ndarray[Any, np.dtype[np.float32]] | None
    max_tokens: int
    answer: list[int]


class Reference:
    """transformers' own model; pictures are encoded once."""

    def __init__(self, checkpoint: Path) -> None:
        import torch
        from transformers import LlavaForConditionalGeneration

        torch.set_num_threads(1)
        self._torch = torch
        self._model = LlavaForConditionalGeneration.from_pretrained(checkpoint).eval()
        pixels = torch.rand((NUM_PICTURES, 3, 48, 48), generator=torch.Generator().manual_seed(0)) * 2 - 1
        with torch.no_grad():
            self.rows = [rows.numpy() for rows in self._model.get_image_features(pixels).pooler_output]
        self._pixels = pixels

    def answer(self, prompt: list[int], pictures: list[int], max_tokens: int) -> tuple[list[int], float]:
        """Ids, and the least gap between the two best logits on the way."""
        torch = self._torch
        inputs: dict[str, Any] = {"input_ids": torch.tensor([prompt])}
        if pictures:
            inputs["pixel_values"] = self._pixels[pictures]
        with torch.no_grad():
            made = self._model.generate(
                **inputs, do_sample=False, max_new_tokens=max_tokens, output_logits=True, return_dict_in_generate=True
            )
        best = torch.stack(made.logits)[:, 0].topk(2).values
        return made.sequences[0, len(prompt) :].tolist(), float((best[:, 0] - best[:, 1]).min())


def draw(rng: random.Random, renderer: PromptRenderer) -> tuple[list[int], Spans, list[int], int]:
    """Prompt, spans, pictures and length of one request."""
    pictures = [rng.randrange(NUM_PICTURES) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
    parts: list[TextPart | PicturePart] = [TextPart(" ".join(rng.choices(WORDS, k=rng.choice((1, 3, 8, 20)))))]
    for index in range(len(pictures)):
        parts.insert(rng.choice((0, len(parts))), PicturePart(index))
    order = iter(range(len(pictures)))
    parts = [PicturePart(next(order)) if isinstance(part, PicturePart) else part for part in parts]
    messages = [Message("user", tuple(parts))]
    if rng.random() < 0.4:
        messages = [Message("system", (TextPart(SYSTEM),)), *messages]
    prompt = renderer.render(messages, [VISUAL_TOKENS] * len(pictures))
    room = CONTEXT_TOKENS - len(prompt.input_ids)
    max_tokens = rng.choice((1, 2, rng.randint(3, 30), rng.randint(3, 30), rng.randint(30, 80)))
    if rng.random() < 0.03:
        max_tokens = room
    return prompt.input_ids.tolist(), tuple(prompt.visual_spans), pictures, min(max_tokens, room)


@pytest.fixture(scope="module")
def cases(tiny_checkpoint: Path) -> list[Case]:
    rng, renderer = random.Random(0), PromptRenderer.from_checkpoint(tiny_checkpoint)
    reference = Reference(tiny_checkpoint)
    made: list[Case] = []
    while len(made) < NUM_CASES:
        prompt, spans, pictures, max_tokens = draw(rng, renderer)
        answer, gap = reference.answer(prompt, pictures, max_tokens)
        if gap >= LEAST_GAP:
            rows = np.concatenate([reference.rows[picture] for picture in pictures]) if pictures else None
            made.append(Case(prompt, spans, rows, max_tokens, answer))
    return made


@pytest.fixture(params=["prefix cache on", "prefix cache off"])
def engine(request: Any, tiny_export: Path, tiny_checkpoint: Path) -> Iterator[OnnxEngine]:
    limits = engine_limits(
        slots=5,
        context_tokens=CONTEXT_TOKENS,
        max_queue=NUM_CASES,
        prefix_bytes=1 << 20 if request.param.endswith("on") else 0,  # small: blocks are evicted all the time
    )
    folder = tiny_export / "model_repository" / "llm" / "1"
    engine = OnnxEngine(folder, load_tokenizer(tiny_checkpoint), limits, revision="tiny")
    yield engine
    engine.check()
    assert engine.num_in_flight == 0
    cached = engine.figures().values("proteus_llm_prefill_tokens_total")["cached"]
    assert (cached > 1000) == request.param.endswith("on")
    engine.close()


def run(engine: OnnxEngine, cases: list[Case], rng: random.Random) -> list[tuple[Case, Client]]:
    """All cases in a random order, at random moments, for random tenants and classes; a fifth is cancelled."""
    asked = []
    for case in rng.sample(cases, len(cases)):
        scheduling = Scheduling(
            cache_scope=rng.choice("ab"), tenant=rng.choice("xyz"), latency_class=rng.choice(("text", "media", "batch"))
        )
        client = Client(
            engine,
            case.prompt,
            Sampling(max_tokens=case.max_tokens),
            visual_tokens=case.rows,
            visual_spans=case.spans,
            scheduling=scheduling,
        )
        if rng.random() < 0.2:
            at = rng.randint(0, len(case.answer))
            client.on_event = lambda event, client=client, at=at: client.cancel() if len(client.events) >= at else None
            if at == 0:
                client.cancel()
        client.submit()
        asked.append((case, client))
        if rng.random() < 0.3:
            time.sleep(rng.expovariate(200))
    for _, client in asked:
        client.wait()
    return asked


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_of_mixed_traffic_are_those_of_generate(engine: OnnxEngine, cases: list[Case], seed: int) -> None:
    asked = run(engine, cases, random.Random(seed))
    cancelled = [client for _, client in asked if client.finish.reason == "cancelled"]
    assert NUM_CASES / 20 < len(cancelled) < NUM_CASES / 3
    for case, client in asked:
        if client.finish.reason == "cancelled":
            assert client.ids == case.answer[: len(client.ids)]
        else:
            assert client.ids == case.answer
