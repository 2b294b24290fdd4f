"""Qwen2-Audio as transformers counts it. No placeholder at all counts as a refusal: the model would hear nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.oracle.case import Audio, Counts, Judge, Medium, Refusal
from tests.oracle.families.whisper import ENCODER, RATE_HZ, AudioCase, leave_out_spectrogram, silence, tiny_files

AUDIO_TOKEN = "<|AUDIO|>"


@dataclass(frozen=True, slots=True)
class Qwen2AudioCase(AudioCase):
    special_tokens: tuple[str, ...] = (AUDIO_TOKEN, "<|audio_bos|>", "<|audio_eos|>")

    def judge(self, folder: Path) -> Judge:
        """The processor, its spectrogram left out."""
        processor = load_processor(folder)
        leave_out_spectrogram(processor.feature_extractor)
        return placeholders(processor)

    def full_judge(self, folder: Path) -> Judge:
        """The processor as it is."""
        return placeholders(load_processor(folder))

    def flops(self, folder: Path, medium: Medium) -> int:
        """Tower and connector; eager, so that torch counts attention."""
        import torch
        from torch.utils.flop_counter import FlopCounterMode
        from transformers import AutoConfig, Qwen2AudioForConditionalGeneration

        config = AutoConfig.from_pretrained(folder)
        config._attn_implementation = "eager"
        model = Qwen2AudioForConditionalGeneration(config).eval().model
        features = process(load_processor(folder), medium, return_tensors="pt")["input_features"]
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model.multi_modal_projector(model.audio_tower(features).last_hidden_state)
        return counter.get_total_flops()


def placeholders(processor: Any) -> Judge:
    def ask(medium: Medium) -> Counts | Refusal:
        ids = list(process(processor, medium)["input_ids"][0])
        heard = ids.count(processor.audio_token_id)
        return Counts(heard, len(ids)) if heard else Refusal("no placeholder")

    return ask


def process(processor: Any, medium: Medium, **options: Any) -> Any:
    """The processor's output for silence."""
    assert isinstance(medium, Audio)
    return processor(text=AUDIO_TOKEN, audio=[silence(medium)], sampling_rate=RATE_HZ, **options)


def load_processor(folder: Path) -> Any:
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(folder)


TEXT = {
    "model_type": "qwen2",
    "hidden_size": 40,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 400,
}
CASES = (
    Qwen2AudioCase(
        name="qwen2-audio",
        family="qwen2_audio",
        files=tiny_files("Qwen2-Audio-7B", ENCODER, text_config=TEXT),
    ),
)
