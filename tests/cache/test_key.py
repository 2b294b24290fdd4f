from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus.cache.key import (
    EncoderVersion,
    PictureKeyFields,
    PixelRules,
    ProcessorKeyFields,
    TextKeyFields,
    media_digest,
    picture_key,
    processor_key,
    scope_key,
    text_key,
    whole,
)
from proteus.families.llava import ResizeRule

RULES = PixelRules(
    policy="p1",
    decoders="pil 1, libheif 2",
    background_rgb=(255, 255, 255),
    animation="first_frame",
    resize=ResizeRule(
        shortest_edge_px=96,
        size_px=None,
        resample=3,
        crop_px=(96, 96),
        rescale_factor=1 / 255,
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
    ),
)
PICTURE = PictureKeyFields(
    scope_key=scope_key("tenant"),
    media_digest=media_digest(b"picture"),
    given_px=None,
    bucket="96x96 tiles",
    visual_tokens=36,
    pixels=RULES,
    encoder=EncoderVersion(revision="r1", graphs="g1", runtime="onnxruntime 1", dtype="FP32"),
)
PIXELS = ProcessorKeyFields(
    scope_key=scope_key("tenant"), media_digest=media_digest(b"picture"), target_px=None, pixels=RULES
)
KEYS: list[tuple[Any, Callable[[Any], bytes]]] = [(PICTURE, picture_key), (PIXELS, processor_key)]
OTHER_VALUES: dict[str, list[Any]] = {
    "given_px": [(1, 2), (2, 1)],
    "target_px": [(1, 2), (2, 1)],
    "shortest_edge_px": [None, 97],
    "size_px": [(96, 96), (9, 696)],
    "crop_px": [None, (96, 95)],
    "rescale_factor": [None, 1 / 254],
    "mean": [None, (0.5, 0.5, 0.25)],
    "std": [None, (0.25, 0.25, 0.5)],
    "background_rgb": [(0, 0, 0), (255, 255, 254)],
}


def others(value: Any, name: str) -> list[Any]:
    """Values that differ from the one there, as a field of the name may have them."""
    if name in OTHER_VALUES:
        return OTHER_VALUES[name]
    if isinstance(value, str):
        return ["", f"{value} ", value.swapcase()]
    return [value[::-1], bytes(32)] if isinstance(value, bytes) else [value + 1, -value]


def changes(key: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key that differs in one field, fields of fields included; one that is new is found by itself."""
    for field in fields(key):
        value = getattr(key, field.name)
        if is_dataclass(value):
            for name, inner in changes(value, f"{path}{field.name}."):
                yield name, replace(key, **{field.name: inner})
        else:
            for other in others(value, field.name):
                yield f"{path}{field.name} = {other!r}", replace(key, **{field.name: other})


CHANGED = [(name, changed, key, digest) for key, digest in KEYS for name, changed in changes(key)]


@pytest.mark.parametrize(
    ("changed", "key", "digest"),
    [case[1:] for case in CHANGED],
    ids=[f"{type(case[2]).__name__}: {case[0]}" for case in CHANGED],
)
def test_every_field_changes_the_key(changed: Any, key: Any, digest: Callable[[Any], bytes]) -> None:
    assert changed != key
    assert whole(changed) != whole(key)
    assert digest(changed) != digest(key)
    assert digest(replace(key)) == digest(key)


def test_every_field_of_a_key_is_changed_by_these_tests() -> None:
    """The rules of the checkpoint, the versions of decoders and encoder, and whatever will be added."""
    names = {name.partition(" = ")[0] for name, *_ in CHANGED}
    rules = {f"pixels.{field.name}" for field in fields(PixelRules)} - {"pixels.resize"}
    resize = {f"pixels.resize.{field.name}" for field in fields(ResizeRule)}
    encoder = {f"encoder.{field.name}" for field in fields(EncoderVersion)}
    own = {field.name for kind in (PictureKeyFields, ProcessorKeyFields) for field in fields(kind)}
    assert names == rules | resize | encoder | (own - {"pixels", "encoder"})


@pytest.mark.parametrize(
    ("digest", "expected"),
    [
        (picture_key(PICTURE), "f3ed4c9d6e4e1267879135d5ed33cde7ead3549969cbac12659d1c45c1223e52"),
        (processor_key(PIXELS), "75614ba36ef16e4b48e8626469710267c89256da6d9a4e67204408eb32eb8f30"),
    ],
)
def test_keys_are_32_bytes_and_the_same_in_every_process(digest: bytes, expected: str) -> None:
    assert digest.hex() == expected


@given(st.text(), st.text(), st.text(), st.text())
def test_fields_never_run_together(scope: str, bucket: str, other_scope: str, other_bucket: str) -> None:
    one = replace(PICTURE, scope_key=scope.encode(), bucket=bucket)
    two = replace(PICTURE, scope_key=other_scope.encode(), bucket=other_bucket)
    assert (picture_key(one) == picture_key(two)) == (whole(one) == whole(two)) == (one == two)


def test_a_value_of_an_unknown_kind_is_no_key() -> None:
    with pytest.raises(TypeError, match="list"):
        picture_key(replace(PICTURE, bucket=[1]))  # type: ignore[arg-type]


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


def test_a_text_a_picture_and_its_pixels_never_have_the_same_key() -> None:
    assert len({text_key(TEXT), picture_key(PICTURE), processor_key(PIXELS), scope_key("tenant")}) == 4
