"""The drawing model's tokenizer: CLIP's kind (lower case, byte-level BPE) over the words of the drawn world."""

from __future__ import annotations

import json
import random

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import CLIPTokenizer

from export.world.wish import drawing, full_wish, prompt, vague_wish

VOCAB_SIZE = 640
MAX_TOKENS = 48  # of a prompt, both ends included
BEGIN, END = "<|startoftext|>", "<|endoftext|>"
WORDS = 3_000  # prompts in the corpus


def build_tokenizer() -> CLIPTokenizer:
    """Deterministic: the same world gives the same ids."""
    tokenizer = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix="</w>", unk_token=END))
    tokenizer.normalizer = normalizers.Lowercase()
    words = Regex(r"[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(words, "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        initial_alphabet=alphabet,
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    learnt = json.loads(tokenizer.to_str())["model"]
    pairs = [tuple(pair) for pair in learnt["merges"]]
    # CLIP's order: the bytes, the bytes that end a word, one entry for each merge, the two special tokens.
    names = [*alphabet, *(f"{byte}</w>" for byte in alphabet), *(left + right for left, right in pairs), BEGIN, END]
    vocab = {name: index for index, name in enumerate(dict.fromkeys(names))}
    return CLIPTokenizer(vocab=vocab, merges=pairs, model_max_length=MAX_TOKENS)


def _corpus() -> list[str]:
    lines = []
    for seed in range(WORDS):
        rng, scene = random.Random(seed), drawing("train", seed)
        lines += [prompt(full_wish(scene), rng), prompt(vague_wish(scene, rng), rng)]
    return lines
