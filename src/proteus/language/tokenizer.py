"""A checkpoint's tokenizer, and its disarmed twin, in which text that a user typed can never become a control token.

The twin knows each control token only under a random name of this process. Text of the chat template is renamed before
it is encoded (`arm`); text of the user carries barriers through the template (`protect`), so that no control token is
found in it or across its edges, and is not renamed. Ids of ordinary text are those of the checkpoint's own tokenizer,
because prompt and user text are still encoded in one piece.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from proteus.errors import InvalidRequest
from proteus.families.llava import UnsupportedCheckpoint

# Private-use planes: a barrier is one of their characters that occurs nowhere in the request.
BARRIERS = (*range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE))


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder, without truncation or padding; raises UnsupportedCheckpoint."""
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnsupportedCheckpoint(
            f"{path} cannot be read ({error.strerror})", fix="save the checkpoint with its fast tokenizer"
        ) from error
    except Exception as error:  # the library raises bare Exception
        raise UnsupportedCheckpoint(f"{path} is no tokenizer", fix="save the tokenizer again") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def choose_barrier(occupied: Collection[str]) -> str:
    """A character that occurs in none of the texts; raises InvalidRequest when they use up all candidates."""
    first = chr(BARRIERS[0])
    if not any(first in text for text in occupied):  # so it is, unless somebody tries
        return first
    used = set().union(*occupied)
    for code in BARRIERS:
        if chr(code) not in used:
            return chr(code)
    raise InvalidRequest(
        "the text uses every private-use character", limit=f"{len(BARRIERS) - 1:,} of them", fix="send plain text"
    )


class DisarmedTokenizer:
    """`control` is the set of token strings that only the template may write."""

    def __init__(self, tokenizer: Tokenizer, control: Iterable[str]) -> None:
        # Longest first: where tokens begin alike, the tokenizer takes the longest.
        names = sorted(control, key=lambda name: (-len(name), name))
        for name in names:
            if len(name) < 2:
                raise UnsupportedCheckpoint(
                    f"control token {name!r} has one character", limit="two or more", fix="use another tokenizer"
                )
        nonce = secrets.token_hex(16)
        self.control = tuple(names)
        # First and last character stay: the tokenizer's single_word rule looks at them.
        self._renamed = {name: f"{name[0]}{nonce}x{index}x{name[-1]}" for index, name in enumerate(names)}
        self._tokenizer = _renamed_tokenizer(tokenizer, self._renamed)
        self._any_name = re.compile("|".join(map(re.escape, names)) or "(?!)")
        self._first_characters = re.compile("|".join(re.escape(c) for c in sorted({n[0] for n in names})) or "(?!)")
        self._endings: dict[str, set[str]] = {}
        for name in names:
            for start in range(1, len(name)):
                self._endings.setdefault(name[start], set()).add(name[start:])

    def protect(self, text: str, barrier: str) -> str:
        """The user's text with barriers after every character that could begin a control token, and in front where the
        text could end one. Outer whitespace stays outside, so that a template can still trim it."""
        core = text.strip()
        if not core:
            return text
        lead, _, tail = text.partition(core)
        front = barrier if self._could_end_a_name(core) else ""
        return lead + front + self._first_characters.sub(lambda match: match[0] + barrier, core) + tail

    def arm(self, rendered: str, barrier: str) -> str:
        """Rename the control tokens that the template wrote, then drop the barriers."""
        return self._any_name.sub(lambda match: self._renamed[match[0]], rendered).replace(barrier, "")

    def encode(self, armed: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of an armed prompt; `add_special_tokens` as in transformers."""
        ids: list[int] = self._tokenizer.encode(armed, add_special_tokens=add_special_tokens).ids
        return ids

    def _could_end_a_name(self, core: str) -> bool:
        endings = self._endings.get(core[0], ())
        return any(core.startswith(ending) or ending.startswith(core) for ending in endings)


def _renamed_tokenizer(tokenizer: Tokenizer, renamed: dict[str, str]) -> Tokenizer:
    document = json.loads(tokenizer.to_str())
    for token in document["added_tokens"]:
        token["content"] = renamed.get(token["content"], token["content"])
    _rename_vocabulary(document["model"], renamed)
    twin = Tokenizer.from_str(json.dumps(document))
    for name, new_name in renamed.items():
        if twin.token_to_id(new_name) != tokenizer.token_to_id(name):
            raise UnsupportedCheckpoint(
                f"control token {name!r} cannot be told apart from text", fix="use another tokenizer"
            )
    return twin


def _rename_vocabulary(model: dict[str, Any], renamed: dict[str, str]) -> None:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {renamed.get(piece, piece): number for piece, number in vocabulary.items()}
    else:  # Unigram: pieces with scores; the id is the place
        model["vocab"] = [[renamed.get(piece, piece), score] for piece, score in vocabulary]
    if model.get("unk_token") is not None:
        model["unk_token"] = renamed.get(model["unk_token"], model["unk_token"])
    if "merges" in model:  # a merge that builds a control token out of text would let the text become one
        model["merges"] = [pair for pair in model["merges"] if renamed.keys().isdisjoint((*pair, "".join(pair)))]
