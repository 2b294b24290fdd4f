"""Small checkpoint folders without weights: three kinds of tokenizer, each with the kind of template found with it."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = (
    "What colour is the circle? The circle is red, the square is blue and the triangle is green.",
    "How many shapes are there in this picture?\n\nThere are two shapes in the picture.",
    "Is there a yellow star? No, there is no star. Where is the square? It is at the top left.",
    "USER ASSISTANT SYSTEM image user assistant end system",
) * 3
CONTROL = ("<unk>", "<s>", "</s>", "<image>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))

# Each part in its place, roles as control tokens.
MARKED_ROLES = """{{- bos_token -}}
{%- for message in messages %}
    {%- generation %}{{- '<|' + message['role'] + '|>\\n' }}{% endgeneration -%}
    {%- for part in message['content'] %}
        {%- if part.type == 'image' %}{{- '<image>' }}{% else %}{{- part.text | trim }}{% endif %}
    {%- endfor %}
    {{- '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{% endif %}"""
# As LLaVA-1.5's: pictures first, no control token but the placeholder; the processor puts <s> in front.
PICTURES_FIRST = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' '}}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
TEMPLATES = {"bytes": MARKED_ROLES, "first": PICTURES_FIRST, "always": PICTURES_FIRST, "unigram": MARKED_ROLES}


def byte_level() -> Tokenizer:
    """GPT-2's way, with runs of spaces as added tokens that are ordinary text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("    ", normalized=False), AddedToken("<b>", normalized=False)])
    return tokenizer


def sentencepiece(prepend: str) -> Tokenizer:
    """Llama's way: byte fallback, `▁` for spaces, put in front of the first word, or of each piece of text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if prepend == "first":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=520, special_tokens=[*CONTROL, *BYTES], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] not in BYTES]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=list(CONTROL), unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


TOKENIZERS = {
    "bytes": byte_level,
    "first": lambda: sentencepiece("first"),
    "always": lambda: sentencepiece("always"),
    "unigram": unigram,
}


def build_checkpoint(folder: Path, kind: str, *, template: str | None = None) -> Path:
    """Tokenizer, template and config of a kind of TOKENIZERS; `template` replaces its own."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = TOKENIZERS[kind]()
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = {"model_type": "llava", "image_token_index": tokenizer.token_to_id("<image>")}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(TEMPLATES[kind] if template is None else template)
    return folder
