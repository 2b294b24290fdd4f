"""Fields of sampling, several answers, logprobs and cached tokens, asked of a real server through the door."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from PIL import Image

from proteus.client import Answer, Client, ServerError
from proteus.deployment import Deployment
from proteus.language.sampling import Sampling
from proteus.launcher import Server
from tests.preprocess.pictures import encode, noise
from tests.server.test_ask import CHART, DESCRIBE, QUESTION
from tests.server.test_stages import DEMO, executions

Triton = tritonclient.grpc.InferenceServerClient
DEPLOYMENT = Deployment.load(DEMO)
HOT: dict[str, Any] = {"temperature": 5.0, "seed": 11}
TOLERANCE = 1e-4
LONG = "Tell me of all the things that you can see here, one after the other, and where each of them is. "


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.ports.grpc_url) as made:
        yield made


def test_a_bias_forces_a_token_and_forbids_one(client: Client) -> None:
    plain = client.ask(DESCRIBE, CHART, max_tokens=6)
    forced = client.ask(DESCRIBE, CHART, max_tokens=6, logit_bias={300: 100})
    assert set(forced.token_ids) == {300}
    forbidden = client.ask(DESCRIBE, CHART, max_tokens=6, logit_bias={plain.token_ids[0]: -100})
    assert plain.token_ids[0] not in forbidden.token_ids


def test_an_answer_does_not_end_before_min_tokens(client: Client) -> None:
    short = client.ask(QUESTION, CHART, max_tokens=40)
    assert short.finish_reason == "stop"
    longer = len(short.token_ids) + 5
    kept = client.ask(QUESTION, CHART, max_tokens=40, min_tokens=longer)
    assert len(kept.token_ids) >= longer
    assert kept.token_ids[: len(short.token_ids) - 1] == short.token_ids[:-1]


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
def test_a_penalty_lets_the_second_best_token_have_a_turn(client: Client, name: Any) -> None:
    forced: dict[str, Any] = {"logit_bias": {300: 100, 301: 92}, "max_tokens": 16}
    plain = client.ask(DESCRIBE, CHART, **forced)
    fined = client.ask(DESCRIBE, CHART, **forced, **{name: 2.0})
    rewarded = client.ask(DESCRIBE, CHART, **forced, **{name: -2.0})
    assert set(plain.token_ids) == set(rewarded.token_ids) == {300}
    assert set(fined.token_ids) == ({300, 301} if name == "frequency_penalty" else {300})


def test_a_repetition_penalty_makes_tokens_repeat_less(client: Client) -> None:
    plain = client.ask(DESCRIBE, CHART, max_tokens=24, min_tokens=24)
    fined = client.ask(DESCRIBE, CHART, max_tokens=24, min_tokens=24, repetition_penalty=2.0)
    assert len(set(fined.token_ids)) > len(set(plain.token_ids))


def test_min_p_of_one_is_greedy(client: Client) -> None:
    greedy = client.ask(DESCRIBE, CHART, max_tokens=12)
    assert client.ask(DESCRIBE, CHART, max_tokens=12, **HOT).token_ids != greedy.token_ids
    assert client.ask(DESCRIBE, CHART, max_tokens=12, min_p=1.0, **HOT).token_ids == greedy.token_ids


def test_a_seed_gives_the_same_tokens_whatever_else_is_asked(client: Client) -> None:
    def ask(seed: int) -> tuple[int, ...]:
        return client.ask(DESCRIBE, CHART, max_tokens=24, temperature=5.0, seed=seed).token_ids

    alone = {seed: ask(seed) for seed in range(6)}
    assert len(set(alone.values())) > 1
    with ThreadPoolExecutor(12) as pool:
        crowded = list(pool.map(lambda number: (number % 6, ask(number % 6)), range(36)))
    assert all(token_ids == alone[seed] for seed, token_ids in crowded)


def test_three_answers_about_two_pictures_are_those_of_three_requests(client: Client, grpc_client: Triton) -> None:
    pictures = [encode(noise(120, 90, seed)) for seed in (901, 902)]
    before = executions(grpc_client, "image_preprocess")
    answer = client.ask(QUESTION, pictures, max_tokens=16, n=3, **HOT)
    assert executions(grpc_client, "image_preprocess") - before == 2
    assert len(answer.choices) == 3
    seeds = [Sampling(seed=HOT["seed"]).for_choice(index).seed for index in range(3)]
    for choice, seed in zip(answer.choices, seeds, strict=True):
        alone = client.ask(QUESTION, pictures, max_tokens=16, temperature=HOT["temperature"], seed=seed)
        assert (choice.token_ids, choice.text, choice.finish_reason) == (
            alone.token_ids,
            alone.text,
            alone.finish_reason,
        )
    assert answer.usage.output_tokens == sum(len(choice.token_ids) for choice in answer.choices)
    assert answer.usage.visual_tokens == 2 * 36


def test_more_answers_than_places_are_given_in_turns(client: Client) -> None:
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: client.ask(QUESTION, CHART, max_tokens=8, n=8), range(6)))
    assert len({choice.token_ids for answer in answers for choice in answer.choices}) == 1


def test_too_many_answers_are_refused_by_field_and_limit(client: Client) -> None:
    with pytest.raises(ServerError) as caught:
        client.ask(QUESTION, CHART, n=DEPLOYMENT.text.max_choices + 1)
    assert caught.value.limit == f"[text] max_choices = {DEPLOYMENT.text.max_choices}"


def test_a_logprob_comes_with_each_token_and_only_where_asked_for(client: Client) -> None:
    answer = client.ask(DESCRIBE, CHART, max_tokens=12, logprobs=True, top_logprobs=3)
    assert len(answer.logprobs) == len(answer.token_ids)
    for entry in answer.logprobs:
        told = [likely.logprob for likely in entry.top_logprobs]
        assert (len(told), told) == (3, sorted(told, reverse=True))
        assert entry.logprob == told[0] <= 0, "greedy takes the most likely"
        assert sum(math.exp(logprob) for logprob in told) <= 1 + 1e-6
    assert b"".join(entry.bytes for entry in answer.logprobs).decode().startswith(answer.text)
    assert client.ask(DESCRIBE, CHART, max_tokens=12).logprobs == ()
    assert all(not entry.top_logprobs for entry in client.ask(DESCRIBE, CHART, max_tokens=4, logprobs=True).logprobs)


def test_a_prompt_asked_again_is_cached_in_its_own_scope_only(client: Client) -> None:
    picture = encode(noise(130, 70, 903))

    def ask(cache_scope: str) -> Answer:
        return client.ask(LONG, picture, max_tokens=8, cache_scope=cache_scope)

    first, second, other = ask("fields a"), ask("fields a"), ask("fields b")
    prompt_tokens = first.usage.text_tokens + first.usage.visual_tokens
    block = DEPLOYMENT.llm.prefix_cache.block_tokens
    assert (first.usage.cached_tokens, other.usage.cached_tokens) == (0, 0)
    assert prompt_tokens - block <= second.usage.cached_tokens < prompt_tokens
    assert first.token_ids == second.token_ids == other.token_ids


def test_another_picture_in_the_same_words_is_not_cached(client: Client) -> None:
    one, other = (encode(noise(130, 70, seed)) for seed in (904, 905))
    client.ask(LONG, one, max_tokens=4, cache_scope="fields c")
    told = client.ask(LONG, other, max_tokens=4, cache_scope="fields c")
    assert told.usage.cached_tokens < 36, "what stands before the picture, and nothing of it"


def test_several_answers_share_what_was_cached_before_them(client: Client) -> None:
    picture = encode(noise(131, 71, 906))
    fresh = client.ask(LONG, picture, max_tokens=4, n=4, cache_scope="fields d")
    assert fresh.usage.cached_tokens == 0, "one of them had to compute it"
    again = client.ask(LONG, picture, max_tokens=4, n=4, cache_scope="fields d")
    assert again.usage.cached_tokens > 36


@pytest.mark.oracle
@pytest.mark.parametrize("pictures", [0, 1, 2])
def test_logprobs_are_the_log_softmax_of_transformers(client: Client, pictures: int) -> None:
    import torch
    from transformers import AutoProcessor, LlavaForConditionalGeneration

    torch.set_num_threads(1)
    processor = AutoProcessor.from_pretrained(DEPLOYMENT.checkpoint_path)
    model = LlavaForConditionalGeneration.from_pretrained(DEPLOYMENT.checkpoint_path).eval()
    seen = [encode(noise(100, 100, seed)) for seed in range(pictures)]
    answer = client.ask(DESCRIBE, seen, max_tokens=24, logprobs=True, top_logprobs=20, **HOT)
    content = [{"type": "image"} for _ in seen] + [{"type": "text", "text": DESCRIBE}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    images = [Image.open(io.BytesIO(picture)).convert("RGB") for picture in seen]
    inputs = processor(images=images or None, text=text, return_tensors="pt", add_special_tokens=False)
    prompt_tokens = inputs["input_ids"].shape[1]
    inputs["input_ids"] = torch.cat([inputs["input_ids"], torch.tensor([answer.token_ids])], dim=1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    with torch.no_grad():
        logits = model(**inputs).logits[0, prompt_tokens - 1 : -1].double()
    expected = torch.log_softmax(logits, dim=-1).numpy()
    told = np.array([entry.logprob for entry in answer.logprobs])
    assert np.abs(told - expected[np.arange(len(told)), answer.token_ids]).max() < TOLERANCE
    top = np.array([[likely.logprob for likely in entry.top_logprobs] for entry in answer.logprobs])
    assert np.abs(top - -np.sort(-expected, axis=1)[:, :20]).max() < TOLERANCE
