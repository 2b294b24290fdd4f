"""What a shared store gives back is used only when it is, to the last bit, what a server with the secret wrote."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus.cache.entry import HEAD, MAGIC, MAX_COST_S, SEAL_BYTES, Rows, entry_bytes, name_of, pack, unpack

KEY, SECRET, SHAPE = b"the whole key", b"secret", (3, 4)
ROWS: Rows = np.arange(12, dtype=np.float32).reshape(SHAPE)
MADE_S = 1_800_000_000.5
ENTRY = pack(KEY, ROWS, 0.25, MADE_S, SECRET)


def sealed(body: bytes, secret: bytes) -> bytes:
    """As whoever has the secret would seal a body, well-formed or not."""
    seal = hmac.digest(secret, b"entry\n" + body, "sha256") if secret else hashlib.sha256(b"entry\n" + body).digest()
    return body + seal


@pytest.mark.parametrize("secret", [b"", SECRET])
def test_what_is_packed_comes_back(secret: bytes) -> None:
    data = pack(KEY, ROWS, 0.25, MADE_S, secret)
    assert len(data) == entry_bytes(KEY, SHAPE)
    entry = unpack(data, KEY, SHAPE, secret)
    assert entry is not None
    assert (entry.rows.tobytes(), entry.rows.shape) == (ROWS.tobytes(), SHAPE)
    assert (entry.cost_s, entry.made_s) == (0.25, MADE_S)
    assert entry.rows.dtype == np.float32
    with pytest.raises(ValueError, match="read-only"):
        entry.rows[0, 0] = 1


@given(st.integers(0, len(ENTRY) - 1), st.integers(0, 7))
def test_no_bit_of_an_entry_can_be_changed(at: int, bit: int) -> None:
    changed = bytearray(ENTRY)
    changed[at] ^= 1 << bit
    assert unpack(bytes(changed), KEY, SHAPE, SECRET) is None


@given(st.integers(0, len(ENTRY) - 1))
def test_no_part_of_an_entry_is_enough(length: int) -> None:
    assert unpack(ENTRY[:length], KEY, SHAPE, SECRET) is None


@given(st.binary(max_size=300))
def test_garbage_is_no_entry(data: bytes) -> None:
    assert unpack(data, KEY, SHAPE, SECRET) is None
    assert unpack(data + bytes(len(ENTRY) - len(data[: len(ENTRY)])), KEY, SHAPE, SECRET) is None


@pytest.mark.parametrize(
    ("key", "shape", "secret"),
    [
        (b"another key..", SHAPE, SECRET),
        (KEY, (4, 3), SECRET),
        (KEY, (2, 6), SECRET),
        (KEY, (3, 3), SECRET),
        (KEY, SHAPE, b"another"),
        (KEY, SHAPE, b""),
    ],
)
def test_another_key_shape_or_secret_has_no_entry(key: bytes, shape: tuple[int, int], secret: bytes) -> None:
    assert unpack(ENTRY, key, shape, secret) is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["rows", "cost", "moment"])
def test_values_that_are_not_finite_are_no_entry(value: float, where: str) -> None:
    rows = ROWS.copy()
    if where == "rows":
        rows[1, 1] = value
    cost_s, made_s = value if where == "cost" else 0.25, value if where == "moment" else MADE_S
    assert unpack(pack(KEY, rows, cost_s, made_s, SECRET), KEY, SHAPE, SECRET) is None


@pytest.mark.parametrize("cost_s", [-0.001, MAX_COST_S + 1, 1e306])
def test_a_cost_that_no_report_could_add_up_is_no_entry(cost_s: float) -> None:
    """1e306 s are an infinity of ms, which JSON does not have."""
    assert unpack(pack(KEY, ROWS, cost_s, MADE_S, SECRET), KEY, SHAPE, SECRET) is None


@pytest.mark.parametrize(
    "head",
    [
        (len(KEY) + 4, 0.25, 0.0, 3, 4),
        (len(KEY), -1.0, 0.0, 3, 4),
        (len(KEY), 0.25, 0.0, 4, 3),
        (2**32 - 1, 0.25, 0.0, 3, 4),
    ],
)
@pytest.mark.parametrize("secret", [b"", SECRET])
def test_a_head_that_says_otherwise_is_no_entry_under_a_right_seal(
    head: tuple[int, float, float, int, int], secret: bytes
) -> None:
    body = MAGIC + HEAD.pack(*head) + KEY + ROWS.tobytes()
    assert unpack(sealed(body, secret), KEY, SHAPE, secret) is None


def test_an_entry_of_another_format_is_none() -> None:
    body = ENTRY[:-SEAL_BYTES].replace(b"proteus.vt.2", b"proteus.vt.1")
    assert unpack(sealed(body, SECRET), KEY, SHAPE, SECRET) is None


def test_a_name_tells_nothing_without_the_secret() -> None:
    names = {name_of(KEY, SECRET), name_of(KEY, b"another"), name_of(KEY, b""), name_of(b"another", SECRET)}
    assert len(names) == 4
    assert all(name.startswith("proteus:vt:2:") and len(name) == 13 + 64 for name in names)
