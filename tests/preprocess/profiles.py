"""ICC profiles made in code (ICC.1:2010): matrix profiles for RGB, a curve for grey, a table for inks."""

from __future__ import annotations

import struct

Xyz = tuple[float, float, float]
# Columns of the matrix to XYZ, adapted to D50.
SRGB: tuple[Xyz, Xyz, Xyz] = ((0.43607, 0.22249, 0.01392), (0.38515, 0.71687, 0.09708), (0.14307, 0.06061, 0.71410))
DISPLAY_P3: tuple[Xyz, Xyz, Xyz] = (
    (0.51512, 0.24120, -0.00105),
    (0.29198, 0.69225, 0.04189),
    (0.15710, 0.06657, 0.78407),
)
D50: Xyz = (0.9642, 1.0, 0.8249)


def rgb_profile(columns: tuple[Xyz, Xyz, Xyz], *, version: int = 4) -> bytes:
    """The sRGB curve over other primaries."""
    tags = {b"wtpt": _xyz(D50)}
    for letter, column in zip((b"r", b"g", b"b"), columns, strict=True):
        tags[letter + b"XYZ"] = _xyz(column)
        tags[letter + b"TRC"] = _srgb_curve() if version == 4 else _gamma_curve(2.2)
    return _profile(b"RGB ", b"XYZ ", tags, version)


def grey_profile(gamma: float) -> bytes:
    return _profile(b"GRAY", b"XYZ ", {b"wtpt": _xyz(D50), b"kTRC": _gamma_curve(gamma)}, 4)


def ink_profile(lab_bytes: tuple[int, int, int]) -> bytes:
    """Every mixture of inks without black is one colour, so that whether the profile is used shows at once."""
    ramp = bytes(range(256))
    matrix = b"".join(_fixed(float(row == column)) for row in range(3) for column in range(3))
    table = (
        b"mft1\0\0\0\0" + bytes((4, 3, 2, 0)) + matrix + ramp * 4 + (bytes(lab_bytes) + b"\0\x80\x80") * 8 + ramp * 3
    )
    return _profile(b"CMYK", b"Lab ", {b"wtpt": _xyz(D50), b"A2B0": table}, 2, kind=b"prtr")


def _profile(space: bytes, pcs: bytes, tags: dict[bytes, bytes], version: int, kind: bytes = b"mntr") -> bytes:
    tags = {b"desc": _text(version), b"cprt": b"text\0\0\0\0none\0", **tags}
    at, table, body = 128 + 4 + 12 * len(tags), struct.pack(">I", len(tags)), b""
    for name, data in tags.items():
        table += struct.pack(">4sII", name, at + len(body), len(data))
        body += data + b"\0" * (-len(data) % 4)
    head = struct.pack(">I4sI4s4s4s12s4s", at + len(body), b"", version << 24, kind, space, pcs, b"", b"acsp")
    head += b"\0" * 28 + b"".join(_fixed(value) for value in D50)
    return head.ljust(128, b"\0") + table + body


def _text(version: int) -> bytes:
    if version == 4:
        return b"mluc\0\0\0\0" + struct.pack(">II2s2sII", 1, 12, b"en", b"US", 8, 28) + "test".encode("utf-16-be")
    return b"desc\0\0\0\0" + struct.pack(">I", 5) + b"test\0" + b"\0" * 78


def _xyz(values: Xyz) -> bytes:
    return b"XYZ \0\0\0\0" + b"".join(_fixed(value) for value in values)


def _srgb_curve() -> bytes:
    values = (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
    return b"para\0\0\0\0" + struct.pack(">HH", 3, 0) + b"".join(_fixed(value) for value in values)


def _gamma_curve(gamma: float) -> bytes:
    return b"curv\0\0\0\0" + struct.pack(">IH", 1, round(gamma * 256))


def _fixed(value: float) -> bytes:
    return struct.pack(">i", round(value * 65536))
