"""Base64 and data URIs to bytes: forgiving about how they are written, strict about what they hold.

ASCII whitespace anywhere, missing padding, either alphabet and a missing `data:` prefix are fine. The declared type is
not read: the content decides.
"""

from __future__ import annotations

import base64
import binascii
import re

from proteus.errors import InvalidMedia, MediaTooLarge

BLANKS = " \t\n\r\f\v"
WHITESPACE = str.maketrans("", "", BLANKS)
DATA_URI = re.compile(r"data:(?P<kind>[^,]{0,256}),", re.IGNORECASE)
ALPHABETS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_="
FOREIGN = re.compile(r"[^A-Za-z0-9+/_=-]")  # tells where; whether there is one, a table tells ten times as fast
URL_SAFE = str.maketrans("-_", "+/")
FIX = "send the base64 of the file's bytes, alone or after data:image/png;base64,"


def from_text(text: str, *, max_bytes: int, key: str = "[image] max_bytes") -> bytes:
    """The bytes of one medium written as base64 or as a data URI.

    Raises InvalidMedia with the reason, or MediaTooLarge, naming `key`, before anything is decoded.
    """
    stripped = text.strip(BLANKS)
    match = DATA_URI.match(stripped)
    if match is not None:
        if not re.search(r";\s*base64\s*$", match["kind"], re.IGNORECASE):
            raise InvalidMedia("the data URI is not base64", limit="data:<type>;base64,<base64>", fix=FIX)
        stripped = stripped[match.end() :]
    elif stripped[:5].lower() == "data:":
        raise InvalidMedia("the data URI has no comma after its type", fix=FIX)
    if any(blank in stripped for blank in BLANKS):
        stripped = stripped.translate(WHITESPACE)
    return _decode(stripped, max_bytes, key)


def _decode(text: str, max_bytes: int, key: str) -> bytes:
    digits = text.rstrip("=")
    if not digits:
        raise InvalidMedia("the base64 is empty", fix=FIX)
    if (num_bytes := len(digits) * 3 // 4) > max_bytes:
        raise MediaTooLarge(
            f"the base64 holds {num_bytes:,} bytes",
            limit=f"{key} = {max_bytes:,}",
            fix="send a smaller or more compressed file",
        )
    if digits[:5].lower() == "data:":
        raise InvalidMedia("the data URI has its prefix twice", fix=FIX)
    if _is_foreign(digits) and (foreign := FOREIGN.search(digits)) is not None:
        raise InvalidMedia(
            f"character {foreign.start() + 1} is not base64", limit="A-Z a-z 0-9 and + / or - _", fix=FIX
        )
    if len(text) - len(digits) > 2 or "=" in digits:
        raise InvalidMedia("the base64 has padding where it does not end", fix=FIX)
    is_url_safe = "-" in digits or "_" in digits
    if is_url_safe and ("+" in digits or "/" in digits):
        raise InvalidMedia("the base64 mixes both alphabets", limit="+ / or - _, not both", fix=FIX)
    if is_url_safe:
        digits = digits.translate(URL_SAFE)
    try:
        return base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidMedia(
            "the base64 is cut off", limit="a multiple of 4 characters, or 2 or 3 more", fix=FIX
        ) from error


def _is_foreign(digits: str) -> bool:
    return not digits.isascii() or bool(digits.encode("ascii").translate(None, ALPHABETS))
