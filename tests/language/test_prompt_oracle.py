"""Ids of prompts, compared with transformers' own processor on the same checkpoint folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from proteus.language.messages import Message, PicturePart, TextPart
from proteus.language.prompt import PromptRenderer
from tests.language.checkpoints import CONTROL, TOKENIZERS

pytestmark = pytest.mark.oracle

VISUAL_TOKENS = 9  # of a picture of 48 px in patches of 16 px
PICTURE = Image.fromarray(np.zeros((48, 48, 3), dtype=np.uint8))
KINDS = (*TOKENIZERS, "tiny")
TEXTS = (
    "What colour is the circle?",
    "  outer   spaces\t and\ttabs  ",
    "two\nlines\n\nand a blank one\r\n",
    "naïve café — “quotes” … ½ ﬁ",
    "日本語の質問 한국어 عربى हिन्दी",
    "👩‍👩‍👧‍👦 🏳️‍🌈 é\u0301 \u200b\ufeff",
    "3 < 5 > 2 and |x| <b>bold</b> <0x41>",
    "    four spaces        eight",
    "x",
    "",
)
spoken = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("ab <>|/\n  ")), max_size=30)


@pytest.fixture(scope="module")
def processors(folders: dict[str, Path], tiny_checkpoint: Path) -> dict[str, Any]:
    from transformers import AutoTokenizer, CLIPImageProcessor, LlavaProcessor

    def processor(folder: Path) -> LlavaProcessor:
        return LlavaProcessor(
            image_processor=CLIPImageProcessor(size={"shortest_edge": 48}, crop_size={"height": 48, "width": 48}),
            tokenizer=AutoTokenizer.from_pretrained(folder),
            patch_size=16,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template=(folder / "chat_template.jinja").read_text(encoding="utf-8"),
        )

    return {kind: processor(folder) for kind, folder in {**folders, "tiny": tiny_checkpoint}.items()}


@pytest.fixture(scope="module")
def renderers(folders: dict[str, Path], tiny_checkpoint: Path) -> dict[str, PromptRenderer]:
    return {
        kind: PromptRenderer.from_checkpoint(folder) for kind, folder in {**folders, "tiny": tiny_checkpoint}.items()
    }


def reference(processor: Any, messages: list[Message]) -> list[int]:
    """Ids of apply_chat_template; an image in the content is `PICTURE`."""
    conversation = [
        {
            "role": message.role,
            "content": [
                {"type": "text", "text": part.text}
                if isinstance(part, TextPart)
                else {"type": "image", "image": PICTURE}
                for part in message.parts
            ],
        }
        for message in messages
    ]
    encoded = processor.apply_chat_template(conversation, add_generation_prompt=True, tokenize=True, return_dict=True)
    ids: list[int] = np.array(encoded["input_ids"]).reshape(-1).tolist()
    return ids


def ours(renderer: PromptRenderer, messages: list[Message]) -> list[int]:
    num_pictures = sum(isinstance(part, PicturePart) for message in messages for part in message.parts)
    ids: list[int] = renderer.render(messages, [VISUAL_TOKENS] * num_pictures).input_ids.tolist()
    return ids


def conversation(turns: list[tuple[str, list[str | None]]]) -> list[Message]:
    """None is the next picture."""
    messages, num_pictures = [], 0
    for role, contents in turns:
        parts: list[TextPart | PicturePart] = []
        for content in contents:
            if content is None:
                parts.append(PicturePart(num_pictures))
                num_pictures += 1
            else:
                parts.append(TextPart(content))
        messages.append(Message(role, tuple(parts)))
    return messages


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_processor(
    processors: dict[str, Any], renderers: dict[str, PromptRenderer], kind: str
) -> None:
    for text in TEXTS:
        for turns in (
            [("user", [text, "."])],
            [("user", [None, text])],
            [("user", [text, None, text, "?", None, None])],
            [("system", ["Be brief."]), ("user", [None, text]), ("assistant", [text]), ("user", [text, None])],
        ):
            messages = conversation(turns)
            assert ours(renderers[kind], messages) == reference(processors[kind], messages), repr(text)


@pytest.mark.parametrize("kind", KINDS)
@given(
    turns=st.lists(
        st.tuples(
            st.sampled_from(["user", "assistant"]), st.lists(st.one_of(spoken, st.none()), min_size=1, max_size=4)
        ),
        min_size=1,
        max_size=3,
    )
)
@settings(max_examples=40, deadline=None)
def test_ids_of_any_text_are_those_of_the_processor(
    processors: dict[str, Any],
    renderers: dict[str, PromptRenderer],
    kind: str,
    turns: list[tuple[str, list[str | None]]],
) -> None:
    messages = conversation(turns)
    written = ["".join(content or "" for content in contents) for _, contents in turns]
    assume(any(contents != [""] * len(contents) for _, contents in turns))
    assume(not any(name in text for name in CONTROL for text in written))
    assert ours(renderers[kind], messages) == reference(processors[kind], messages)
