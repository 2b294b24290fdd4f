"""Ids of a prompt are those of the checkpoint's own tokenizers, save that text never becomes a control token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proteus.door.draw_text import PromptTokenizer
from proteus.errors import PromptTooLong
from proteus.manifest import TextInput
from tests.tiny_diffusers import clip_tokenizer

TEXTS = ("a red circle", "A Red  circle, at the top!", "", "red!", "é, ü: unknown", "the\nthe", "\u2028 a")


def text_input(folder: str, tokenizer: Any, number: int = 0) -> TextInput:
    return TextInput(
        tensor="input_ids" + (f"_{number + 1}" if number else ""),
        folder=folder,
        tokens=tokenizer.model_max_length,
        pad_id=tokenizer.pad_token_id,
    )


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[PromptTokenizer, Any]:
    """A door's tokenizer of 20 ids, and the one of transformers that it was saved from."""
    folder = tmp_path_factory.mktemp("clip")
    tokenizer = clip_tokenizer(20)
    tokenizer.save_pretrained(folder / "tokenizer")
    return PromptTokenizer.from_checkpoint(folder, [text_input("tokenizer", tokenizer)]), tokenizer


def test_a_short_prompt_is_padded_and_its_tokens_are_counted(clip: tuple[PromptTokenizer, Any]) -> None:
    mine, theirs = clip
    ids = mine.encode("a red circle", "prompt")
    array = ids.arrays["input_ids"]
    assert (array.dtype, array.shape) == (np.int64, (20,))
    assert array.tolist() == theirs("a red circle", padding="max_length", max_length=20)["input_ids"]
    assert (ids.num_tokens, ids.says_nothing) == (5, False)


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_a_text_without_tokens_says_nothing(clip: tuple[PromptTokenizer, Any], text: str) -> None:
    ids = clip[0].encode(text, "negative_prompt")
    assert (ids.num_tokens, ids.says_nothing) == (2, True)


def test_control_tokens_in_a_prompt_stay_text(clip: tuple[PromptTokenizer, Any]) -> None:
    mine, theirs = clip
    ids = mine.encode("<|endoftext|>", "prompt")
    begin, end = theirs.bos_token_id, theirs.eos_token_id
    array = ids.arrays["input_ids"].tolist()
    assert array[0] == begin
    assert set(array[1 : ids.num_tokens - 1]).isdisjoint({begin, end})
    assert set(array[ids.num_tokens - 1 :]) == {end}
    assert len(theirs("<|endoftext|>")["input_ids"]) == 3, "which transformers would take for the end"


@pytest.mark.parametrize("num_words", [18, 19, 500])
def test_a_prompt_is_refused_and_never_cut_short(clip: tuple[PromptTokenizer, Any], num_words: int) -> None:
    mine, _ = clip
    text = " ".join(["red"] * num_words)
    if num_words <= 18:
        assert mine.encode(text, "prompt").num_tokens == 20
        return
    with pytest.raises(PromptTooLong) as caught:
        mine.encode(text, "negative_prompt")
    for word in (f"negative_prompt has {num_words + 2} tokens, 2 of them around it (tokenizer)", "20 tokens", "fix: "):
        assert word in str(caught.value)


def test_key_bytes_name_every_input_in_order(clip: tuple[PromptTokenizer, Any]) -> None:
    ids = clip[0].encode("a", "prompt")
    assert ids.as_bytes() == (("input_ids", ids.arrays["input_ids"].astype("<i8").tobytes()),)


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
