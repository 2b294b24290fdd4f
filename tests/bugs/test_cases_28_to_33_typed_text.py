"""Seen: `<|image|>` in the text beside one picture crashes (28); pictures are moved to the front (29); a missing
template drops the picture or crashes (31); an empty prompt kills the server (32). Behind the missing 30 and 33:
pictures in roles that have none, empty parts, whitespace, control characters, halves of surrogate pairs, look-alikes.

Cause: what a user typed was read as markup, by the tokenizer or by the template, and nothing looked at what was left.
Right: text is text, whatever it says: it never becomes a control token and never changes how many pictures there are;
what leaves nothing to read is refused. The control tokens of many families are declared special in the tokenizer used
here, so that text which slipped through would be seen as their ids.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from proteus.errors import InvalidRequest, PromptTooLong
from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.language.messages import Message, PicturePart, TextPart
from proteus.language.prompt import PromptRenderer
from tests.bugs.door import PICTURE, asked, asked_as_written, text, untouched
from tests.door.test_chat import BLUE, DEMO, RED, Models, shown_by
from tests.language.checkpoints import build_checkpoint

PLACEHOLDERS = (
    "<image>", "<|image|>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<IMG_CONTEXT>",
    "<img>", "</img>", "[IMG]", "[IMG_BREAK]", "[IMG_END]", "<image_soft_token>", "<start_of_image>", "<end_of_image>",
    "<fake_token_around_image>", "<global-img>", "<row_1_col_1>", "<|endoftext10|>", "<|AUDIO|>", "<|audio_bos|>",
    "<|begin_of_text|>", "<|start_header_id|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]",
    "<start_of_turn>", "<end_of_turn>", "<end_of_utterance>", "<|endoftext|>", "<video>", "<s>", "</s>", "<pad>",
)  # fmt: skip
CODE = (
    "{{ 7 * 7 }}", "{% for i in range(10 ** 9) %}x{% endfor %}", "{{ cycler.__init__.__globals__ }}", "{# gone #}",
    "{{ raise_exception('x') }}", "{% endgeneration %}", "${7*7}", "%s%n", "{0.__class__}", "'; DROP TABLE", "\\u0041",
)  # fmt: skip
STRANGE = {
    "NUL and escapes": "a\0b\x01\x1b[31m\x7f",
    "direction marks": "\u202eabc\u202c\u2066\u200f",
    "zero width": "<\u200bimage>\u200d\ufeff",
    "look-alikes": "＜image＞ ‹image› <іmage> ⟨image⟩ <image\u0338>",
    "no characters": "\uffff\ufffe\U0010ffff",
    "private use": "".join(map(chr, range(0xF0000, 0xF0020))),
    "marks upon marks": "e" + "\u0301" * 100,
    "family emoji": "👩‍👩‍👧‍👦" * 5,
    "one long word": "a" * 900,
    "all kinds of space": "a\u00a0\u2003\u3000\u2028\u2029\x85b",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose tokenizer knows every placeholder above as a special token."""
    made = build_checkpoint(tmp_path_factory.mktemp("typed"), "bytes")
    tokenizer = Tokenizer.from_file(str(made / "tokenizer.json"))
    tokenizer.add_special_tokens(list(PLACEHOLDERS))
    tokenizer.save(str(made / "tokenizer.json"))
    return made


@pytest.fixture(scope="module")
def renderer(folder: Path) -> PromptRenderer:
    return PromptRenderer.from_checkpoint(folder)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def special(tokenizer: Tokenizer, ids: np.ndarray) -> list[str]:
    """Control tokens of a prompt, in order."""
    known = {number: token.content for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    return [known[number] for number in ids.tolist() if number in known]


# --- 28: placeholders that were typed ---


@pytest.mark.parametrize("typed", [*PLACEHOLDERS, *CODE])
@pytest.mark.parametrize("pictures", [0, 1, 2])
def test_what_looks_like_markup_is_text_and_comes_through(
    renderer: PromptRenderer, tokenizer: Tokenizer, typed: str, pictures: int
) -> None:
    def prompt(words: str) -> np.ndarray:
        parts = (TextPart(f" {words} "), *map(PicturePart, range(pictures)), TextPart(words))
        return renderer.render([Message("user", parts)], [3] * pictures).input_ids

    ids = prompt(typed)
    assert special(tokenizer, ids) == special(tokenizer, prompt("x"))
    assert tokenizer.decode(ids.tolist(), skip_special_tokens=False).count(typed) >= 2


@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(st.sampled_from([*PLACEHOLDERS, *CODE, "<", "|", ">", "<|", "|>", "[", " "]), max_size=6))
def test_no_mixture_of_them_becomes_a_control_token(
    pieces: list[str], tokenizer: Tokenizer, renderer: PromptRenderer
) -> None:
    parts = (PicturePart(0), *map(TextPart, pieces), TextPart("x"))
    ids = renderer.render([Message("user", parts)], [1]).input_ids
    plain = renderer.render([Message("user", (PicturePart(0), TextPart("x")))], [1]).input_ids
    assert special(tokenizer, ids) == special(tokenizer, plain)


@pytest.mark.parametrize("typed", [" <|image|> ", "<image>", "<image>" * 4])
def test_reported_request_is_answered_with_one_picture(typed: str) -> None:
    client, models = asked(RED, content=[text(typed), PICTURE])
    assert client.text == "Hi!"
    assert len(models.calls[0].visual_spans) == 1
    _, models = asked(content=[text(typed)])
    assert models.calls[0].visual_spans == ()


# --- 29: order ---


def test_which_is_first_is_told_by_the_order_of_the_parts() -> None:
    _, models = asked(RED, BLUE, content=[text("one"), PICTURE, text("two"), PICTURE, text("which is first?")])
    (call,) = models.calls
    (first, length), (second, _) = call.visual_spans
    assert call.visual_tokens is not None
    assert call.visual_tokens[[0, length], 0].tolist() == [shown_by(RED), shown_by(BLUE)]
    tokenizer = Tokenizer.from_file(str(DEMO.checkpoint_path / "tokenizer.json"))
    pieces = [call.input_ids[start:end] for start, end in ((0, first), (first + length, second), (second + length, -1))]
    for word, ids in zip(("one", "two", "which"), pieces, strict=True):
        assert word in tokenizer.decode(ids.tolist())


# --- 30: pictures where none belongs ---


@pytest.mark.parametrize("role", ["system", "assistant"])
@pytest.mark.parametrize("part", [PICTURE, {"type": "image", "data": "AAAA"}])
def test_picture_of_another_role_is_refused_by_its_place(role: str, part: dict[str, str]) -> None:
    models, question = Models(), {"role": "user", "content": "?"}
    messages = [{"role": role, "content": [text("look"), part]}, question]
    with pytest.raises(InvalidRequest, match=rf"messages\[0\] is the {role}'s and holds a picture; fix: move"):
        asked(RED, content="ignored", models=models, messages=messages)
    assert untouched(models)


# --- 31: a template that is missing or cannot take pictures ---


@pytest.mark.parametrize(
    "template",
    [
        None,
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
        "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}<image><image>{% else %}{{ p.text }}"
        "{% endif %}{% endfor %}{% endfor %}",
        "",
    ],
    ids=["missing", "text only", "drops pictures", "doubles pictures", "empty"],
)
def test_checkpoint_whose_template_takes_no_pictures_is_refused_at_load(tmp_path: Path, template: str | None) -> None:
    build_checkpoint(tmp_path, "bytes", template=template)
    if template is None:
        (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(UnsupportedCheckpoint, match="fix: "):
        PromptRenderer.from_checkpoint(tmp_path)


# --- 32 and 33: nothing to read ---


@pytest.mark.parametrize(
    "content",
    ["", [], [text("")], [text("")] * 2, None, 0, [None], [[text("x")]], text("x"), [{"type": "text", "text": None}]],
)
def test_content_that_is_empty_or_of_no_kind_is_refused(content: object) -> None:
    models = Models()
    with pytest.raises(InvalidRequest, match=r"messages\[0\]\.content.*; fix: "):
        asked(content=content, models=models)
    assert untouched(models)


@pytest.mark.parametrize("content", [[PICTURE], [PICTURE, text("")], [text(" \n"), PICTURE]])
def test_picture_alone_is_a_question(content: list[dict[str, str]]) -> None:
    client, models = asked(RED, content=content)
    assert client.reports[0]["usage"]["visual_tokens"] == 36
    assert len(models.calls[0].input_ids) > 36, "the template's own marks are there"


@pytest.mark.parametrize("blank", [" ", "\n\t ", " " * 60_000])
def test_blank_text_is_answered_from_the_marks_of_the_template(blank: str) -> None:
    _, models = asked(content=blank)
    assert len(models.calls[0].input_ids) > 0


def test_conversation_of_which_the_template_leaves_nothing_is_refused(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}<image>"
        "{% else %}{{ p.text | trim }}{% endif %}{% endfor %}{% endfor %}"
    )
    renderer = PromptRenderer.from_checkpoint(build_checkpoint(tmp_path, "bytes", template=template))
    for blank in (" ", "\n\n", "\u3000"):
        with pytest.raises(InvalidRequest, match="empty prompt of this conversation; fix: send more text"):
            renderer.render([Message("user", (TextPart(blank),))], [])


@pytest.mark.parametrize("name", STRANGE)
def test_strange_characters_are_answered_and_come_through(name: str, renderer: PromptRenderer) -> None:
    client, _ = asked(RED, content=[PICTURE, text(STRANGE[name])])
    assert client.text == "Hi!"
    prompt = renderer.render([Message("user", (TextPart(STRANGE[name]),))], [])
    assert prompt.visual_spans == ()


@pytest.mark.parametrize("half", ["\\ud83d", "\\udc00\\ud83d", "x\\udfff"])
@pytest.mark.parametrize("place", ["content", "stop", "tenant", "cache_scope"])
def test_half_of_a_surrogate_pair_is_refused_wherever_it_stands(half: str, place: str) -> None:
    models = Models()
    user = {"role": "user", "content": "HALF" if place == "content" else "?"}
    document: dict[str, object] = {"messages": [user]}
    if place != "content":
        document[place] = ["HALF"] if place == "stop" else "HALF"
    with pytest.raises(InvalidRequest, match="not JSON.*; fix: send one JSON object"):
        asked_as_written(json.dumps(document).replace("HALF", half).encode(), models=models)
    assert untouched(models)


@pytest.mark.parametrize("length", [65_536, 65_537])
def test_word_as_long_as_the_limit_is_too_long_a_prompt_and_a_longer_one_too_much_text(length: int) -> None:
    error, words = (PromptTooLong, "context_tokens = 1024") if length == 65_536 else (InvalidRequest, "max_text_bytes")
    with pytest.raises(error, match=words):
        asked(content="a" * length)
