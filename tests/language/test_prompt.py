from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from proteus.errors import InvalidRequest
from proteus.families.llava import UnsupportedCheckpoint
from proteus.language.messages import Message, PicturePart, TextPart
from proteus.language.prompt import Prompt, PromptRenderer
from proteus.language.template import MAX_RENDERED_CHARS
from proteus.language.tokenizer import BARRIERS, choose_barrier
from tests.language.checkpoints import CONTROL, TOKENIZERS, build_checkpoint

KINDS = tuple(TOKENIZERS)
NASTY = (
    *CONTROL,
    *(name[:cut] for name in CONTROL for cut in (1, 2, 4)),
    *(name[-cut:] for name in CONTROL for cut in (1, 2, 4)),
    "image", "end", "|", " ", "\n", "x", "＜s＞", "<b>", chr(BARRIERS[0]), chr(BARRIERS[1]), "{{ bos_token }}",
)  # fmt: skip
nasty_text = st.lists(st.sampled_from(NASTY), min_size=1, max_size=8).map("".join)


@pytest.fixture(scope="module")
def renderers(folders: dict[str, Path]) -> dict[str, PromptRenderer]:
    return {kind: PromptRenderer.from_checkpoint(folder) for kind, folder in folders.items()}


@pytest.fixture(scope="module")
def tokenizers(folders: dict[str, Path]) -> dict[str, Tokenizer]:
    return {kind: Tokenizer.from_file(str(folder / "tokenizer.json")) for kind, folder in folders.items()}


def user(*parts: str | int) -> Message:
    return Message("user", tuple(TextPart(part) if isinstance(part, str) else PicturePart(part) for part in parts))


def control_ids(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """Ids of control tokens in the prompt; <unk> is what a tokenizer without bytes makes of a strange character."""
    control = {tokenizer.token_to_id(name) for name in CONTROL if name != "<unk>"}
    return [number for number in prompt.input_ids.tolist() if number in control]


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(nasty_text, min_size=1, max_size=4), with_picture=st.booleans())
@settings(max_examples=40, deadline=None)
def test_typed_control_tokens_are_just_text(
    renderers: dict[str, PromptRenderer],
    tokenizers: dict[str, Tokenizer],
    kind: str,
    texts: list[str],
    with_picture: bool,
) -> None:
    pictures = [0] if with_picture else []
    prompt = renderers[kind].render([user(*texts, *pictures)], [5] * len(pictures))
    plain = renderers[kind].render([user("x", *pictures)], [5] * len(pictures))
    assert control_ids(tokenizers[kind], prompt) == control_ids(tokenizers[kind], plain)


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_typed_text_arrives_unchanged_in_every_role(
    renderers: dict[str, PromptRenderer], tokenizers: dict[str, Tokenizer], role: str
) -> None:
    typed = "".join(NASTY).strip()
    prompt = renderers["bytes"].render([Message(role, (TextPart(typed),)), user("x")], [])
    assert typed in tokenizers["bytes"].decode(prompt.input_ids.tolist(), skip_special_tokens=False)


def test_typed_image_token_is_just_text_beside_a_real_picture(renderers: dict[str, PromptRenderer]) -> None:
    prompt = renderers["bytes"].render([user("<image>", 0, "<im", "age>")], [9])
    image_token_id = CONTROL.index("<image>")
    assert prompt.visual_spans == ((int(np.argmax(prompt.input_ids == image_token_id)), 9),)
    assert (prompt.input_ids == image_token_id).sum() == 9


def test_text_cannot_complete_a_control_token_that_the_template_began(tmp_path: Path) -> None:
    template = (
        "{% for message in messages %}{% for part in message.content %}"
        "{% if part.type == 'image' %}<image>{% else %}<{{ part.text | trim }}|><{{ part.text }}{% endif %}"
        "{% endfor %}{% endfor %}"
    )
    renderer = PromptRenderer.from_checkpoint(build_checkpoint(tmp_path, "bytes", template=template))
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for typed in ("image>", " image>", "|end", "s>", "/s>", "|user|", "image> and more"):
        assert control_ids(tokenizer, renderer.render([user(typed)], [])) == []


def test_pictures_keep_their_order_and_their_own_lengths(renderers: dict[str, PromptRenderer]) -> None:
    prompt = renderers["bytes"].render([user("a", 0, "b", 1), user(2, "c")], [3, 1, 7])
    starts = [start for start, _ in prompt.visual_spans]
    assert [length for _, length in prompt.visual_spans] == [3, 1, 7]
    assert starts == sorted(starts)
    covered = np.concatenate([np.arange(start, start + length) for start, length in prompt.visual_spans])
    assert np.array_equal(np.flatnonzero(prompt.input_ids == CONTROL.index("<image>")), covered)
    assert (prompt.visual_tokens, prompt.text_tokens) == (11, len(prompt.input_ids) - 11)
    assert prompt.input_ids.dtype == np.int32


def test_one_picture_used_twice_has_two_spans(renderers: dict[str, PromptRenderer]) -> None:
    prompt = renderers["bytes"].render([user(1, "or", 0, "or", 1)], [2, 5])
    assert [length for _, length in prompt.visual_spans] == [5, 2, 5]


@pytest.mark.parametrize(
    ("messages", "lengths", "text"),
    [
        ([], [], "empty"),
        ([user("")], [], "empty"),
        ([Message("tool", (TextPart("x"),))], [], "role"),
        ([user("half \ud83d")], [], "surrogate"),
        ([user("x", 0)], [], "1 picture parts for 0 pictures"),
        ([user("x")], [4], "0 picture parts for 1 pictures"),
        ([user("x", 0)], [0], "no visual tokens"),
    ],
)
def test_unusable_conversations_are_refused(
    renderers: dict[str, PromptRenderer], messages: list[Message], lengths: list[int], text: str
) -> None:
    with pytest.raises(InvalidRequest, match=text):
        renderers["bytes"].render(messages, lengths)


def test_a_template_that_drops_pictures_of_a_role_is_an_error_of_the_request(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}"
        "{% elif m.role == 'user' %}<image>{% endif %}{% endfor %}{% endfor %}"
    )
    renderer = PromptRenderer.from_checkpoint(build_checkpoint(tmp_path, "bytes", template=template))
    with pytest.raises(InvalidRequest, match="0 placeholders for 1 pictures"):
        renderer.render([Message("assistant", (PicturePart(0), TextPart("x")))], [3])


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "cannot take"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "cannot take pictures"),
        ("{% for m in messages %}", "does not compile"),
        ("{{ raise_exception('no pictures here') }}", "no pictures here"),
        ("{{ ''.__class__.__mro__ }}", "cannot take pictures"),
        ("{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}", f"{MAX_RENDERED_CHARS:,}|too long"),
    ],
)
def test_templates_that_cannot_serve_are_refused_at_load(tmp_path: Path, template: str, text: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=text):
        PromptRenderer.from_checkpoint(build_checkpoint(tmp_path, "bytes", template=template))


def test_a_missing_template_is_refused_at_load(tmp_path: Path) -> None:
    (build_checkpoint(tmp_path, "bytes") / "chat_template.jinja").unlink()
    with pytest.raises(UnsupportedCheckpoint, match=r"chat_template\.jinja is missing"):
        PromptRenderer.from_checkpoint(tmp_path)


def test_an_image_token_that_the_tokenizer_does_not_know_is_refused_at_load(tmp_path: Path) -> None:
    (build_checkpoint(tmp_path, "bytes") / "config.json").write_text(json.dumps({"image_token_id": 32000}))
    with pytest.raises(UnsupportedCheckpoint, match="image_token_id = 32000"):
        PromptRenderer.from_checkpoint(tmp_path)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.json"])
def test_a_template_in_an_older_place_is_found(tmp_path: Path, file: str) -> None:
    template = build_checkpoint(tmp_path, "bytes") / "chat_template.jinja"
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / file).write_text(json.dumps({**settings, "chat_template": template.read_text()}))
    expected = PromptRenderer.from_checkpoint(tmp_path).render([user("x")], [])
    template.unlink()
    found = PromptRenderer.from_checkpoint(tmp_path).render([user("x")], [])
    assert found.input_ids.tolist() == expected.input_ids.tolist()


def test_a_refusal_by_the_template_carries_its_reason_and_no_barrier(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}<image>"
        "{% elif 'bad' in p.text %}{{ raise_exception('not ' + p.text) }}{% else %}{{ p.text }}{% endif %}"
        "{% endfor %}{% endfor %}"
    )
    renderer = PromptRenderer.from_checkpoint(build_checkpoint(tmp_path, "bytes", template=template))
    with pytest.raises(InvalidRequest, match="refuses this conversation: not <bad>;"):
        renderer.render([user("<bad>")], [])


def test_a_barrier_is_a_character_that_the_request_does_not_use() -> None:
    assert choose_barrier([]) == chr(BARRIERS[0])
    assert choose_barrier([chr(BARRIERS[0]), chr(BARRIERS[1])]) == chr(BARRIERS[2])
    with pytest.raises(InvalidRequest, match="private-use"):
        choose_barrier(["".join(map(chr, BARRIERS))])
