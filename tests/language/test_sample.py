from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.errors import InvalidRequest
from proteus.language.sample import FEW, Sampler, draw
from proteus.language.sampling import Sampling
from tests.language.samplers import Chances, Floats, choose, choose_next, probabilities, random_logits, sampler_of

SIZE = 50
PINNED = [9, 8, 9, 40, 31, 25, 16, 21, 35, 3, 22, 32]
FIELDS: dict[str, Any] = {
    "min_tokens": 3,
    "top_p": 0.7,
    "top_k": 4,
    "min_p": 0.2,
    "frequency_penalty": 0.8,
    "presence_penalty": -1.5,
    "repetition_penalty": 1.4,
    "logit_bias": {3: 5.0, 49: -7.0},
}


def test_temperature_zero_takes_the_lowest_of_equal_ids() -> None:
    logits = np.array([0, 5, 5, 1], dtype=np.float32)
    assert choose(Sampling(), logits, times=3) == [1, 1, 1]
    assert choose(Sampling(logit_bias={0: 5.0}), logits, times=3) == [0, 0, 0]


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others() -> None:
    logits = random_logits(0)
    first, again, other = (choose(Sampling(temperature=1.0, seed=seed), logits, times=40) for seed in (7, 7, 8))
    assert first == again != other


def test_without_a_seed_the_tokens_differ() -> None:
    logits = random_logits(0)
    assert choose(Sampling(temperature=1.0), logits, 40) != choose(Sampling(temperature=1.0), logits, 40)


def test_a_seed_gives_the_tokens_it_always_gave() -> None:
    answer = choose(Sampling(temperature=1.0, seed=20_261_129), random_logits(5, scale=1.0), times=12)
    assert answer == PINNED


def test_each_token_takes_one_random_number_whatever_the_fields() -> None:
    """So that a request's later tokens do not depend on how many candidates an earlier one had."""
    logits, flat = random_logits(0), np.zeros(SIZE, dtype=np.float32)
    for field in FIELDS:
        one = sampler_of(Sampling(temperature=1.0, seed=4, **{field: FIELDS[field]}), size=SIZE)
        plain = sampler_of(Sampling(temperature=1.0, seed=4), size=SIZE)
        for _ in range(5):
            choose_next(one, logits)
            choose_next(plain, flat)
        assert one._random is not None and plain._random is not None
        assert one._random.random() == plain._random.random()


def test_neighbours_do_not_change_a_seeded_answer() -> None:
    sampling, rows = Sampling(temperature=1.0, seed=9, frequency_penalty=0.5), [random_logits(n) for n in range(30)]
    alone, beside = sampler_of(sampling, size=SIZE), sampler_of(sampling, size=SIZE)
    neighbour = sampler_of(Sampling(temperature=2.0, seed=9), size=SIZE)
    answer = [choose_next(alone, row) for row in rows]
    together = []
    for row in rows:
        choose_next(neighbour, row)
        together.append(choose_next(beside, row))
        choose_next(neighbour, row)
    assert together == answer


def test_the_logits_of_the_batch_are_left_as_they_are() -> None:
    logits = random_logits(2)
    before = logits.copy()
    choose(Sampling(temperature=0.5, seed=1, **FIELDS), logits, times=6, prompt=[1, 2], stop=[7])
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("size", [8, 3 * FEW + 5])
@pytest.mark.parametrize("fields", [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"logit_bias": {2: 1.0}}])
def test_tokens_come_as_often_as_they_are_likely(size: int, fields: dict[str, Any]) -> None:
    """Pearson's chi-square over cells that expect at least 5; the bound is exceeded once in 10,000 seeds."""
    logits, times = random_logits(1, size=size, scale=1.5), 6_000
    sampling = Sampling(temperature=0.8, seed=3, **fields)
    expected = times * probabilities(logits, sampling)
    drawn = np.bincount(choose(sampling, logits, times=times), minlength=size)
    assert not drawn[expected == 0].any()
    is_large = expected >= 5
    expected = np.append(expected[is_large], expected[~is_large].sum())
    drawn = np.append(drawn[is_large], drawn[~is_large].sum())
    expected, drawn = expected[expected > 0], drawn[expected > 0]
    freedom = len(expected) - 1
    bound = freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3  # Wilson and Hilferty
    assert ((drawn - expected) ** 2 / expected).sum() < bound


some_fields = st.fixed_dictionaries(
    {},
    optional={
        "top_k": st.integers(0, 60),
        "top_p": st.floats(1e-6, 1.0),
        "min_p": st.floats(0, 1),
        "frequency_penalty": st.floats(-2, 2),
        "presence_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0, exclude_min=True, allow_infinity=False),
        "logit_bias": st.dictionaries(st.integers(0, SIZE - 1), st.floats(-100, 100), max_size=SIZE),
        "min_tokens": st.integers(0, 4),
    },
)


@given(
    seed=st.integers(0, 10_000),
    temperature=st.floats(0, 1e300, exclude_min=True),
    fields=some_fields,
    step=st.sampled_from([0.0, 0.5]),
    prompt=st.lists(st.integers(0, SIZE - 1), max_size=8),
)
@settings(deadline=None, max_examples=400)
def test_any_sampling_gives_ids_that_may_be_chosen(
    seed: int, temperature: float, fields: dict[str, Any], step: float, prompt: list[int]
) -> None:
    sampling = Sampling(temperature=temperature, seed=seed, **fields)
    sampler, stop = sampler_of(sampling, prompt=prompt, stop=(2, 3), size=SIZE), (2, 3)
    for token in range(5):
        logits = random_logits(seed + token)
        logits = np.round(logits / step).astype(np.float32) * np.float32(step) if step else logits
        logits[seed % SIZE] = -np.inf
        chances = sampler.distribution(logits)
        chosen = choose_next(sampler, logits)
        assert chances[chosen] > 0 and chosen != seed % SIZE
        assert chances.min() >= 0 and abs(chances.sum() - 1) < 1e-9
        assert token >= sampling.min_tokens or chosen not in stop


@pytest.mark.parametrize("pair", [*combinations(FIELDS, 2)], ids="+".join)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_each_of_two_fields_keeps_its_word(pair: tuple[str, str], temperature: float) -> None:
    logits, stop = random_logits(6), int(random_logits(6).argmax())
    fields = {field: FIELDS[field] for field in pair}
    sampler = sampler_of(Sampling(temperature=temperature, seed=5, **fields), prompt=[3, 4], stop=[stop], size=SIZE)
    for token in range(6):
        chances = chances_of(sampler, logits, temperature)
        assert np.count_nonzero(chances) <= fields.get("top_k", SIZE)
        assert chances[chances > 0].min() >= fields.get("min_p", 0.0) * chances.max()
        assert chances[stop] == 0 or token >= fields.get("min_tokens", 0)
        assert chances[choose_next(sampler, logits)] > 0


def chances_of(sampler: Sampler, logits: Floats, temperature: float) -> Chances:
    if temperature:
        return sampler.distribution(logits)
    chances = np.zeros(len(logits))
    chances[sampler.adjusted(logits).argmax()] = 1
    return chances


def test_masked_logits_are_never_chosen() -> None:
    logits = np.array([-np.inf, 1, -np.inf, 1], dtype=np.float32)
    for fields in ({}, {"top_k": 3}, {"top_p": 0.99}, {"min_p": 0.01}, {"logit_bias": {0: 100.0}}):
        assert set(choose(Sampling(temperature=5.0, seed=0, **fields), logits, times=200)) == {1, 3}


def test_min_tokens_keeps_the_answer_from_ending_and_no_longer() -> None:
    logits = np.array([5, 4, 9, 8], dtype=np.float32)
    assert choose(Sampling(min_tokens=3), logits, 5, stop=[2, 3]) == [0, 0, 0, 2, 2]
    assert choose(Sampling(min_tokens=3), logits, 5, stop=[2, 3, 999]) == [0, 0, 0, 2, 2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_nothing_but_the_end_is_possible_min_tokens_is_refused(temperature: float) -> None:
    logits = np.array([5, -np.inf, 9], dtype=np.float32)
    with pytest.raises(InvalidRequest, match=r"no token is left.*min_tokens"):
        choose(Sampling(min_tokens=1, temperature=temperature), logits, stop=[0, 2])
    with pytest.raises(InvalidRequest, match="no token is left"):
        sampler_of(Sampling(min_tokens=1, temperature=1.0), stop=[0, 2], size=3).distribution(logits)
    assert choose(Sampling(temperature=temperature, seed=1, top_k=1), logits, stop=[0, 2]) == [2]


def test_a_bias_of_100_is_as_good_as_a_command_and_of_minus_100_as_a_ban() -> None:
    logits = random_logits(3)
    highest = int(logits.argmax())
    for temperature in (0.0, 1.0):
        forced = Sampling(temperature=temperature, seed=1, logit_bias={17: 100.0})
        banned = Sampling(temperature=temperature, seed=1, logit_bias={highest: -100.0})
        assert set(choose(forced, logits, 50)) == {17}
        assert highest not in choose(banned, logits, 50)


@pytest.mark.parametrize(
    "fields", [{"temperature": 1e-6}, {"temperature": 5e-324}, {"top_p": 1e-300}, {"min_p": 1.0}, {"top_k": 1}]
)
def test_extreme_values_come_down_to_greedy(fields: dict[str, float]) -> None:
    logits = random_logits(4, size=3000)
    sampling = Sampling(**{"temperature": 1.0, "seed": 2, **fields})  # type: ignore[arg-type]
    assert set(choose(sampling, logits, times=50)) == {int(logits.argmax())}


def test_extreme_values_that_change_nothing_change_nothing() -> None:
    logits = random_logits(4, size=3000)
    plain = probabilities(logits, Sampling(temperature=1.0))
    for fields in (
        {"min_p": 5e-324},
        {"top_k": 3000},
        {"top_k": 10**9},
        {"top_p": 1 - 1e-16},
        {"logit_bias": {0: 0.0}},
    ):
        np.testing.assert_allclose(probabilities(logits, Sampling(temperature=1.0, **fields)), plain, rtol=1e-12)


def test_of_equal_logits_all_stay_at_the_edge_of_top_k_and_the_higher_ids_at_that_of_top_p() -> None:
    logits = np.array([2, 1, 1, 1, 0], dtype=np.float32)
    assert (probabilities(logits, Sampling(temperature=1.0, top_k=2)) > 0).tolist() == [True, True, True, True, False]
    assert (probabilities(logits, Sampling(temperature=1.0, top_p=0.6)) > 0).tolist() == [
        True,
        False,
        False,
        True,
        False,
    ]
    equal = np.zeros(10, dtype=np.float32)
    assert np.flatnonzero(probabilities(equal, Sampling(temperature=1.0, top_p=0.35))).tolist() == [6, 7, 8, 9]
    assert np.flatnonzero(probabilities(equal, Sampling(temperature=1.0, min_p=1.0))).tolist() == list(range(10))


def test_the_ends_of_the_vocabulary_are_tokens_like_others() -> None:
    for size in (1, 2, 64, 2 * FEW):
        logits = np.zeros(size, dtype=np.float32)
        for field, value in {"top_k": 1, "top_p": 0.5, "min_p": 0.5, "repetition_penalty": 2.0}.items():
            sampling = Sampling(temperature=1.0, seed=0, **{field: value})  # type: ignore[arg-type]
            assert set(choose(sampling, logits, 20, prompt=[0, size - 1])) <= set(range(size))
        assert choose(Sampling(logit_bias={size - 1: 1.0}), logits) == [size - 1]


@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([1, 2, 7, FEW - 1, FEW, FEW + 1, 4 * FEW]),
    share=st.sampled_from([0.001, 0.1, 1.0]),
    random=st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2**-53])),
)
@settings(deadline=None, max_examples=300)
def test_a_draw_falls_where_the_running_sum_passes_it(seed: int, size: int, share: float, random: float) -> None:
    source = np.random.default_rng(seed)
    weights = source.random(size) * (source.random(size) < share)
    weights[source.integers(size)] = 1.0
    place = draw(weights, random)
    cumulative = np.cumsum(weights)
    assert weights[place] > 0
    slack = 1e-12 * cumulative[-1]
    assert cumulative[place] - weights[place] - slack <= random * cumulative[-1] <= cumulative[place] + slack
