"""The demo's tokenizer and chat template: byte-level BPE over the drawn world's words, real special tokens."""

from __future__ import annotations

import random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from export.world.questions import caption, questions
from export.world.scene import scene

VOCAB_SIZE = 512
PAD, BOS, IMAGE, SYSTEM, USER, ASSISTANT, END = SPECIALS = (
    "<pad>",
    "<s>",
    "<image>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
)
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' }}"
    "{% if message['content'] is string %}{{ message['content'] | trim }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<image>' }}{% else %}{{ part['text'] | trim }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{{ '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
DESCRIBE = ("Describe the picture.", "What do you see?", "What is in the picture?")


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Deterministic: the same corpus of the same world gives the same ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[IMAGE, SYSTEM, USER, ASSISTANT],
        model_max_length=1024,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _corpus() -> list[str]:
    lines = list(DESCRIBE)
    for seed in range(2_000):
        rng, scene_ = random.Random(seed), scene("train", seed)
        lines.append(caption(scene_))
        for question in questions(scene_, rng):
            lines += [question.text, question.answer]
    return lines + ["first", "second"] * 50
