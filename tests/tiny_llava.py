"""Makes a LLaVA checkpoint with random weights, in the layout of the Hugging Face hub, without any download."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    GenerationConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<image>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<image>' }}{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{{ '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
CORPUS = (
    "What colour is the circle? The circle is red, the square is blue and the triangle is green.",
    "How many shapes are there in this picture? There are two shapes in the picture.",
    "Is there a yellow star? No, there is no star. Where is the square? It is at the top left.",
    "Read the digits. Which picture has more circles, the first or the second one?",
)
_HUB_KEYS = (
    ("model.vision_tower.", "vision_tower.vision_model."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("model.language_model.", "language_model.model."),
    ("lm_head.", "language_model.lm_head."),
)


def build_tiny_llava(
    folder: Path,
    *,
    image_size: int = 48,
    patch_size: int = 16,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    vocab: int = 400,
    seed: int = 0,
    head_dim: int | None = None,
    vision_hidden: int | None = None,
    vision_layers: int | None = None,
    vision_feature_layer: int | list[int] = -2,
    select_strategy: str = "default",
    tied: bool = False,
    attention_bias: bool = False,
    context_tokens: int = 512,
    rope: dict[str, object] | None = None,
) -> Path:
    """Write the checkpoint to `folder` and return it; the same arguments give the same bytes of weights.

    Weights are large enough (unit gain) for logits to lie apart, so that greedy answers can be compared.
    """
    tokenizer = _tokenizer(vocab, context_tokens)
    vision_hidden = vision_hidden or hidden
    num_patches = (image_size // patch_size) ** 2
    vision = CLIPVisionConfig(
        image_size=image_size,
        patch_size=patch_size,
        hidden_size=vision_hidden,
        intermediate_size=2 * vision_hidden,
        num_hidden_layers=vision_layers or layers,
        num_attention_heads=heads,
        projection_dim=vision_hidden,
    )
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim or hidden // heads,
        max_position_embeddings=context_tokens,
        attention_bias=attention_bias,
        rope_parameters=rope or {"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=tied,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=num_patches + (select_strategy == "full"),
        vision_feature_layer=vision_feature_layer,
        vision_feature_select_strategy=select_strategy,
        tie_word_embeddings=tied,
        architectures=["LlavaForConditionalGeneration"],
    )
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_hub_weights(_random_model(config, seed), tied), folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    _save_processor(folder, tokenizer, config)
    GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|end|>")],
        pad_token_id=tokenizer.pad_token_id,
    ).save_pretrained(folder)
    return folder


def _random_model(config: LlavaConfig, seed: int) -> LlavaForConditionalGeneration:
    model = LlavaForConditionalGeneration(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.1 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.1 * noise)
            elif "embed" in name and "patch" not in name:
                parameter.copy_(0.5 * noise)
            else:
                fan_in = math.prod(parameter.shape[1:])
                parameter.copy_(noise * (3.0 if name.startswith("lm_head") else 1.2) / math.sqrt(fan_in))
        if config.tie_word_embeddings:  # or the likeliest token is always the one just read
            model.get_input_embeddings().weight.mul_(0.2)
            model.model.language_model.norm.weight.mul_(4.0)
    return model.eval()


def _hub_weights(model: LlavaForConditionalGeneration, tied: bool) -> dict[str, torch.Tensor]:
    weights = {}
    for key, tensor in model.state_dict().items():
        if tied and key == "lm_head.weight":
            continue
        ours, hub = next(pair for pair in _HUB_KEYS if key.startswith(pair[0]))
        name = hub + key.removeprefix(ours)
        weights[name.replace("vision_model.vision_model", "vision_model")] = tensor.contiguous()
    return weights


def _tokenizer(vocab: int, context_tokens: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<image>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"],
        model_max_length=context_tokens,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def _save_processor(folder: Path, tokenizer: PreTrainedTokenizerFast, config: LlavaConfig) -> None:
    side = config.vision_config.image_size
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessor(
            size={"shortest_edge": side}, crop_size={"height": side, "width": side}, do_center_crop=True
        ),
        tokenizer=tokenizer,
        patch_size=config.vision_config.patch_size,
        vision_feature_select_strategy=config.vision_feature_select_strategy,
        image_token="<image>",
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    )
    processor.save_pretrained(folder)
    processor.image_processor.save_pretrained(folder)
