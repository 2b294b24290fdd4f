"""Ids of a prompt are those of the checkpoint's own tokenizers, save that text never becomes a control token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from proteus.door.draw_text import PromptTokenizer
from proteus.errors import PromptTooLong
from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.manifest import TextInput

TEXTS = ("a red circle", "A Red  circle, at the top!", "", "red!", "é, ü: unknown", "the\nthe", "\u2028 a")


def text_input(folder: str, tokenizer: Any, number: int = 0) -> TextInput:
    return TextInput(
        tensor="input_ids" + (f"_{number + 1}" if number else ""),
        folder=folder,
        tokens=tokenizer.model_max_length,
        pad_id=tokenizer.pad_token_id,
    )


@pytest.fixture
def words(tmp_path: Path) -> PromptTokenizer:
    """Of 20 ids: 0 begins and 1 ends a text, 2 pads it, 3 is what it does not know."""
    vocabulary = {token: number for number, token in enumerate(("<s>", "</s>", "<pad>", "<unk>", "a", "red", "circle"))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    tokenizer.add_special_tokens(["<s>", "</s>", "<pad>", "<unk>"])
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(pad_id=2, pad_token="<pad>", length=8)
    (tmp_path / "tokenizer").mkdir()
    tokenizer.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    text_input = TextInput(tensor="input_ids", folder="tokenizer", tokens=20, pad_id=2)
    return PromptTokenizer.from_checkpoint(tmp_path, [text_input])


def test_a_short_prompt_is_padded_and_its_tokens_are_counted(words: PromptTokenizer) -> None:
    ids = words.encode("a red circle", "prompt")
    array = ids.arrays["input_ids"]
    assert (array.dtype, array.tolist()) == (np.int64, [0, 4, 5, 6, 1, *[2] * 15])
    assert (ids.num_tokens, ids.says_nothing) == (5, False)


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_a_text_without_tokens_says_nothing(words: PromptTokenizer, text: str) -> None:
    ids = words.encode(text, "negative_prompt")
    assert (ids.num_tokens, ids.says_nothing) == (2, True)


@pytest.mark.parametrize("text", ["</s>", "a </s> red", "<pad>", "<s><s>", "<unk>"])
def test_control_tokens_in_a_prompt_stay_text(words: PromptTokenizer, text: str) -> None:
    ids = words.encode(text, "prompt")
    array = ids.arrays["input_ids"].tolist()
    assert (array[0], array[ids.num_tokens - 1]) == (0, 1)
    assert set(array[1 : ids.num_tokens - 1]) <= {3, 4, 5}


@pytest.mark.parametrize("num_words", [18, 19, 500])
def test_a_prompt_is_refused_and_never_cut_short(words: PromptTokenizer, num_words: int) -> None:
    text = " ".join(["red"] * num_words)
    if num_words <= 18:
        assert words.encode(text, "prompt").num_tokens == 20
        return
    with pytest.raises(PromptTooLong) as caught:
        words.encode(text, "negative_prompt")
    for word in (f"negative_prompt has {num_words + 2} tokens, 2 of them around it (tokenizer)", "20 tokens", "fix: "):
        assert word in str(caught.value)


def test_key_bytes_name_every_input_in_order(words: PromptTokenizer) -> None:
    ids = words.encode("a", "prompt")
    assert ids.as_bytes() == (("input_ids", ids.arrays["input_ids"].astype("<i8").tobytes()),)


def test_a_folder_without_a_fast_tokenizer_is_named(tmp_path: Path) -> None:
    text_input = TextInput(tensor="input_ids", folder="tokenizer", tokens=20, pad_id=2)
    with pytest.raises(UnsupportedCheckpoint, match=r"tokenizer/tokenizer.json cannot be read"):
        PromptTokenizer.from_checkpoint(tmp_path, [text_input])


@pytest.mark.oracle
@pytest.mark.parametrize("family", ["sd15", "sd3", "flux"])
def test_ids_equal_those_of_transformers(family: str, tmp_path: Path) -> None:
    from diffusers import DiffusionPipeline

    import tests.tiny_diffusers as tiny

    build: Callable[[Path], Path] = getattr(tiny, family)
    pipeline = DiffusionPipeline.from_pretrained(build(tmp_path))
    names = [name for name in ("tokenizer", "tokenizer_2", "tokenizer_3") if getattr(pipeline, name, None) is not None]
    theirs = [getattr(pipeline, name) for name in names]
    inputs = [text_input(name, tokenizer, at) for at, (name, tokenizer) in enumerate(zip(names, theirs, strict=True))]
    mine = PromptTokenizer.from_checkpoint(tmp_path, inputs)
    for text in TEXTS:
        ids = mine.encode(text, "prompt")
        wanted = [tokenizer(text, padding="max_length")["input_ids"] for tokenizer in theirs]
        assert [ids.arrays[one.tensor].tolist() for one in inputs] == wanted
        assert ids.num_tokens == max(len(tokenizer(text)["input_ids"]) for tokenizer in theirs)
