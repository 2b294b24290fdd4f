"""Logarithms of probability that clients are told, against the log-softmax of transformers' own logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proteus.language.engine import Event, OnnxEngine
from proteus.language.generation import TokenLogprobs
from proteus.language.sampling import Sampling
from tests.language.prompts import IMAGE, VOCABULARY, Prompt, spell

pytestmark = pytest.mark.oracle

FAR = 1e-4  # between float32 sums in different orders
PROMPTS = (spell(1), spell(2), spell(40), spell("A", 3), spell(3, "B", 20, "C", 4))


@pytest.fixture(scope="module")
def reference(tiny_checkpoint: Path) -> Any:
    """Log-softmax at each place of a prompt and its answer, (T, V)."""
    import torch
    from transformers import LlavaForConditionalGeneration

    torch.set_num_threads(1)
    model = LlavaForConditionalGeneration.from_pretrained(tiny_checkpoint).eval()

    def logprobs(prompt: Prompt, answer: list[int]) -> Any:
        ids = torch.tensor([prompt.ids + answer])
        embedded = model.get_input_embeddings()(ids)
        if prompt.rows is not None:
            embedded[ids == IMAGE] = torch.from_numpy(prompt.rows)
        with torch.no_grad():
            logits = model(inputs_embeds=embedded).logits[0]
        return torch.log_softmax(logits.double(), dim=-1).numpy()

    with torch.no_grad():
        yield logprobs


@pytest.mark.parametrize("prompt", PROMPTS, ids=["bos", "two", "text", "picture", "pictures"])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=30, logprobs=True, top_logprobs=VOCABULARY),
        Sampling(max_tokens=30, logprobs=True, top_logprobs=VOCABULARY, temperature=2.0, seed=1, top_k=20),
    ],
    ids=["greedy", "drawn"],
)
def test_logprobs_of_every_id_at_every_token_are_those_of_transformers(
    engine: OnnxEngine, reference: Any, prompt: Prompt, sampling: Sampling
) -> None:
    for _ in range(2):  # computed, then from the prefix cache
        client = prompt.client(engine, sampling).submit().wait()
        rows: list[TokenLogprobs] = [
            row for event in client.events if isinstance(event, Event) for row in event.logprobs
        ]
        expected = reference(prompt, client.ids)[len(prompt.ids) - 1 : -1]
        told = np.full_like(expected, np.nan)
        for place, row in enumerate(rows):
            for number, value in row.top:
                told[place, number] = value
        assert np.abs(told - expected).max() < FAR
        chosen = expected[np.arange(len(rows)), client.ids]
        assert np.abs([row.logprob for row in rows] - chosen).max() < FAR
