"""Chains of links: what must differ, differs, and what is alike up to a place is alike up to there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus.language.generation import Spans
from proteus.language.prefix import Chain, Link, chain, media_key_of_rows, root

ROOT = root(cache_scope="tenant", revision="r1", adapter="")
PICTURE = 2  # the id of a placeholder
A, B = b"a" * 32, b"b" * 32


def links(
    ids: list[int], spans: Spans = (), keys: tuple[bytes, ...] = (), *, block_tokens: int = 4, root: Link = ROOT
) -> Chain:
    return chain(
        root=root,
        input_ids=np.array(ids, dtype=np.int32),
        visual_spans=spans,
        media_keys=keys,
        block_tokens=block_tokens,
    )


def num_shared(one: Chain, two: Chain) -> int:
    """Links that are equal before the first that differs; behind it none may be equal."""
    number = next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    assert not {link.digest for link in one[number:]} & {link.digest for link in two}
    return number


@pytest.mark.parametrize(
    "change",
    [{"cache_scope": "other"}, {"cache_scope": ""}, {"revision": "r2"}, {"adapter": "a"}, {"kv_dtype": "float16"}],
)
def test_every_field_changes_the_root(change: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"cache_scope": "tenant", "revision": "r1", "adapter": ""}
    assert root(**fields | change) != ROOT
    ids = list(range(10, 30))
    assert num_shared(links(ids), links(ids, root=root(**fields | change))) == 0


def test_a_link_is_no_longer_for_a_long_scope() -> None:
    """It is held with every prompt that begins with it, and no limit counts it."""
    assert len(root(cache_scope="x" * 1_000_000, revision="r1", adapter="").content) == len(ROOT.content)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (("a", "b", ""), ("ab", "", "")),
        (("a", "b", ""), ("", "ab", "")),
        (("", "a", "b"), ("", "ab", "")),
        (("", "a", "b"), ("a", "", "b")),
        (("a\0", "b", ""), ("a", "\0b", "")),
    ],
)
def test_fields_of_the_root_never_run_together(one: tuple[str, str, str], two: tuple[str, str, str]) -> None:
    def of(fields: tuple[str, str, str]) -> Link:
        return root(cache_scope=fields[0], revision=fields[1], adapter=fields[2])

    assert of(one) != of(two)


def test_digests_are_the_same_in_every_process() -> None:
    last = links([10, 11, PICTURE, PICTURE, PICTURE, 12, 13, 14], ((2, 3),), (A,))[-1]
    assert last.digest.hex() == "1336df054d07f8769155d4b2992ca081adfa77fc9cc99cb994686762af3f753f"


@pytest.mark.parametrize(("num_tokens", "num_links"), [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2)])
def test_only_full_blocks_have_a_link(num_tokens: int, num_links: int) -> None:
    assert len(links(list(range(num_tokens)))) == num_links


def test_ids_of_any_integer_type_give_the_same_chain() -> None:
    ids = [10, 11, 12, 13]
    wide = chain(root=ROOT, input_ids=np.array(ids), visual_spans=(), media_keys=(), block_tokens=4)
    assert wide == links(ids)


def test_ids_that_agree_in_their_low_bits_differ() -> None:
    wide = np.array([10, 11, 12, 13 + (1 << 32)])
    assert chain(root=ROOT, input_ids=wide, visual_spans=(), media_keys=(), block_tokens=4) != links([10, 11, 12, 13])


@given(
    st.lists(st.integers(3, 5), max_size=24), st.lists(st.integers(3, 5), max_size=24), st.sampled_from([1, 2, 3, 8])
)
def test_prompts_share_exactly_the_blocks_before_their_first_difference(
    one: list[int], two: list[int], block_tokens: int
) -> None:
    same = next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    shared = num_shared(links(one, block_tokens=block_tokens), links(two, block_tokens=block_tokens))
    assert shared == same // block_tokens


def test_blocks_of_another_size_share_nothing() -> None:
    ids = list(range(10, 34))
    assert not set(links(ids, block_tokens=4)) & set(links(ids, block_tokens=8))
    zeros = [0] * 24
    assert not set(links(zeros, block_tokens=4)) & set(links(zeros, block_tokens=8))


def test_another_picture_in_the_same_place_is_another_block() -> None:
    ids = [10, 11, 12, 13, PICTURE, PICTURE, PICTURE, 14]
    assert num_shared(links(ids, ((4, 3),), (A,)), links(ids, ((4, 3),), (B,))) == 1


def test_the_same_picture_in_the_same_place_is_the_same_block() -> None:
    ids = [10, 11, PICTURE, PICTURE, PICTURE, 12, 13, 14]
    assert links(ids, ((2, 3),), (A,)) == links(ids, ((2, 3),), (A,))


def test_the_same_picture_at_another_offset_is_another_block() -> None:
    """Two adjacent pictures, the border between them moved by one: ids, keys and places of placeholders are equal."""
    ids = [PICTURE] * 8
    assert num_shared(links(ids, ((0, 3), (3, 5)), (A, B)), links(ids, ((0, 4), (4, 4)), (A, B))) == 0


def test_a_picture_cut_at_another_length_is_another_block() -> None:
    """The first block shows the same four rows; the picture was planned with eight, or with five."""
    assert num_shared(links([PICTURE] * 8, ((0, 8),), (A,)), links([PICTURE] * 5 + [9] * 3, ((0, 5),), (A,))) == 0


def test_swapped_pictures_share_nothing() -> None:
    ids = [PICTURE, PICTURE, 10, PICTURE, PICTURE, 11, 12, 13]
    spans = ((0, 2), (3, 2))
    assert num_shared(links(ids, spans, (A, B)), links(ids, spans, (B, A))) == 0


def test_the_same_picture_twice_is_not_that_picture_with_another_between() -> None:
    two = links([PICTURE] * 4 + [PICTURE] * 4, ((0, 4), (4, 4)), (A, A))
    three = links([PICTURE] * 4 + [PICTURE] * 4 + [PICTURE] * 4, ((0, 4), (4, 4), (8, 4)), (A, B, A))
    assert num_shared(two, three) == 1
    assert len(set(two)) == 2
    assert len(set(three)) == 3


def test_a_span_that_ends_at_the_border_of_a_block_is_not_in_the_next() -> None:
    """Nor does one that begins behind the last full block change anything before it."""
    ids = [10, PICTURE, PICTURE, PICTURE, 11, 12, 13, 14, PICTURE, PICTURE]
    one, two = links(ids, ((1, 3), (8, 2)), (A, A)), links(ids, ((1, 3), (8, 2)), (A, B))
    assert one == two
    assert num_shared(one, links(ids[:8], ((1, 3),), (A,))) == 2


def test_a_picture_across_three_blocks_is_in_each_of_them() -> None:
    ids = [10, 11] + [PICTURE] * 8 + [12, 13]
    one, two = links(ids, ((2, 8),), (A,)), links(ids, ((2, 8),), (B,))
    assert len(one) == 3
    assert num_shared(one, two) == 0
    assert len(set(one + two)) == 6


def test_keys_of_media_never_run_together() -> None:
    ids = [PICTURE] * 4
    spans = ((0, 2), (2, 2))
    assert links(ids, spans, (b"a", b"bc")) != links(ids, spans, (b"ab", b"c"))
    assert links(ids, ((0, 4),), (b"ab",)) != links(ids, ((0, 4),), (b"ab\0",))


def test_a_picture_without_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        links([PICTURE] * 4, ((0, 2), (2, 2)), (A,))
    with pytest.raises(ValueError, match="empty"):
        links([PICTURE] * 4, ((0, 4),), (b"",))


def test_links_compare_all_that_was_hashed_and_not_its_digest_alone() -> None:
    """As if SHA-256 collided: of two roots, of two blocks of ids, of two pictures."""
    ids, spans = [10, 11, 12, 13, PICTURE, PICTURE, 14, 15], ((4, 2),)
    ours = links(ids, spans, (A,))
    other_root = root(cache_scope="other", revision="r1", adapter="")
    for others in (
        links(ids, spans, (A,), root=other_root._replace(digest=ROOT.digest)),
        links([9, *ids[1:]], spans, (A,)),
        links(ids, spans, (B,)),
    ):
        as_if = [link._replace(digest=mine.digest) for link, mine in zip(others, ours, strict=True)]
        assert as_if != list(ours)


def test_keys_of_rows_differ_in_value_shape_and_order() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    others = [rows + 1, rows.reshape(4, 3), rows[::-1], rows[:2], np.asfortranarray(rows.reshape(2, 6))]
    assert len({media_key_of_rows(array) for array in (rows, *others)}) == 6
    assert media_key_of_rows(np.asfortranarray(rows)) == media_key_of_rows(rows)
