from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus.cache.key import PictureKeyFields, TextKeyFields, media_digest, picture_key, text_key

FIELDS = PictureKeyFields(
    cache_scope="tenant",
    revision="r1",
    policy="p1",
    plan="96px 36",
    dtype="FP32",
    media_digest=media_digest(b"picture"),
)


@pytest.mark.parametrize(
    "change",
    [
        {"cache_scope": "other"},
        {"revision": "r2"},
        {"policy": "p2"},
        {"plan": "96px 37"},
        {"dtype": "FP16"},
        {"media_digest": media_digest(b"other")},
        {"salt": b"x"},
    ],
)
def test_every_field_changes_the_key(change: dict[str, str | bytes]) -> None:
    assert picture_key(replace(FIELDS, **change)) != picture_key(FIELDS)  # type: ignore[arg-type]


def test_key_is_32_bytes_and_the_same_in_every_process() -> None:
    assert picture_key(FIELDS).hex() == "bf9d4fcdc9b5fb23fbf93063c4878fc86ad5656f606de77936d1bf8259f948ed"


@given(st.text(), st.text(), st.text(), st.text())
def test_fields_never_run_together(scope: str, revision: str, other_scope: str, other_revision: str) -> None:
    one = replace(FIELDS, cache_scope=scope, revision=revision)
    two = replace(FIELDS, cache_scope=other_scope, revision=other_revision)
    assert (picture_key(one) == picture_key(two)) == (one == two)


TEXT = TextKeyFields(cache_scope="tenant", revision="r1", ids=(("input_ids", b"12"), ("input_ids_2", b"34")))


@pytest.mark.parametrize(
    "change",
    [
        {"cache_scope": "other"},
        {"revision": "r2"},
        {"salt": b"x"},
        {"ids": (("input_ids", b"12"), ("input_ids_2", b"35"))},
        {"ids": (("input_ids", b"12"), ("input_ids_3", b"34"))},
        {"ids": (("input_ids", b"123"), ("input_ids_2", b"4"))},
        {"ids": (("input_ids", b"12"),)},
        {"ids": (("input_ids_2", b"34"), ("input_ids", b"12"))},
    ],
)
def test_every_field_of_a_text_changes_its_key(change: dict[str, object]) -> None:
    assert text_key(replace(TEXT, **change)) != text_key(TEXT)  # type: ignore[arg-type]


def test_key_of_a_text_is_32_bytes_and_the_same_in_every_process() -> None:
    assert text_key(TEXT).hex() == "a079c59490a529d105547a34e665e1de1f4189eafc8715763130ea2a890d510d"


def test_a_text_and_a_picture_never_have_the_same_key() -> None:
    assert text_key(TextKeyFields(cache_scope="", revision="", ids=())) != picture_key(
        PictureKeyFields(cache_scope="", revision="", policy="", plan="", dtype="", media_digest=b"")
    )
