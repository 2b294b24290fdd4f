"""Writes the trained model as a checkpoint in the LLaVA layout of the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file
from transformers import (
    GenerationConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from export.train.evaluate import image_processor
from export.train.tokens import CHAT_TEMPLATE, IMAGE

_HUB_KEYS = {
    "model.vision_tower.": "vision_tower.vision_model.",
    "model.multi_modal_projector.": "multi_modal_projector.",
    "model.language_model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
}


def save_checkpoint(folder: Path, model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast) -> None:
    """`folder` gets weights under hub key names (tied head left out), configs, tokenizer, template and processor."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {}
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        prefix = next(prefix for prefix in _HUB_KEYS if key.startswith(prefix))
        name = _HUB_KEYS[prefix] + key.removeprefix(prefix)
        weights[name.replace("vision_model.vision_model.", "vision_model.")] = tensor.contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors writes it for the owner alone
    config = model.config
    config.architectures = ["LlavaForConditionalGeneration"]
    config.save_pretrained(folder)
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    GenerationConfig(**ends, pad_token_id=tokenizer.pad_token_id).save_pretrained(folder)
    processor = LlavaProcessor(
        image_processor=image_processor(config.vision_config.image_size),
        tokenizer=tokenizer,
        patch_size=config.vision_config.patch_size,
        vision_feature_select_strategy=config.vision_feature_select_strategy,
        image_token=IMAGE,
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    )
    processor.save_pretrained(folder)
    processor.image_processor.save_pretrained(folder)
