"""Qwen2-VL as transformers counts it; the two younger families share the case."""

from __future__ import annotations

import math
import random as random_module
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.families.published_qwen import PUBLISHED
from tests.oracle.case import Counts, Hub, Images, Judge, Medium, Refusal, Video, around, image_sizes

PAD_TOKENS = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
SPECIAL_TOKENS = (*PAD_TOKENS.values(), "<|vision_start|>", "<|vision_end|>")
ASSUMED_FRAMES_PER_S = 24


@dataclass(frozen=True, slots=True)
class QwenCase(Hub):
    """`cell_px`, `edges` (pixel counts where scaling starts) and `max_frames` steer the media."""

    special_tokens: tuple[str, ...] = SPECIAL_TOKENS
    text_tokens: tuple[str, ...] = (" seconds",)
    full_pixels: int = 1_000_000
    cell_px: int = 28
    edges: tuple[int, ...] = (56 * 56, 28 * 28 * 1280, 28 * 28 * 16384)
    max_frames: int = 80

    def judge(self, folder: Path) -> Judge:
        """The processor's counting function, and for clips the text that it puts in the placeholder's place."""
        processor = load_processor(folder)

        def ask(medium: Medium) -> Counts | Refusal:
            if isinstance(medium, Images):
                sizes = [(height, width) for width, height in medium.sizes]
                visual = sum(processor._get_num_multimodal_tokens(image_sizes=sizes).num_image_tokens)
                return Counts(visual, visual)
            assert isinstance(medium, Video)
            size = (medium.num_frames, medium.height_px, medium.width_px)
            (visual,) = processor._get_num_multimodal_tokens(video_sizes=[size]).num_video_tokens
            return Counts(visual, visual + wrapper_tokens(processor, medium, visual))

        return ask

    def full_judge(self, folder: Path) -> Judge:
        """The processor on blank frames."""
        processor = load_processor(folder)

        def ask(medium: Medium) -> Counts | Refusal:
            kind, inputs = ("image", blank_images(medium)) if isinstance(medium, Images) else ("video", clip(medium))
            ids = processor(text=PAD_TOKENS[kind] * len(inputs[f"{kind}s"]), **inputs)["input_ids"][0]
            return Counts(list(ids).count(getattr(processor, f"{kind}_token_id")), len(ids))

        return ask

    def media(self, random: random_module.Random, count: int) -> Iterator[Medium]:
        """Two pictures to a clip; every fifth size lies at an edge of the pixel range."""
        marks = around([self.cell_px * k // 2 for k in (*range(1, 20), 63, 64, 127, 200, 257)])
        sizes = image_sizes(random, count, marks=marks)
        for number, size in enumerate(sizes):
            if number % 5 == 4:
                size = near_product(random, random.choice(self.edges))
            if number % 3 < 2:
                yield Images((size,))
            else:
                yield self.video(random, *size)

    def video(self, random: random_module.Random, width_px: int, height_px: int) -> Video:
        num_frames = random.choice((1, 2, 3, 4, 5, 7, 8, 9, 16, random.randint(1, self.max_frames)))
        if random.random() < 0.3:  # a whole clip at an edge of the range
            width_px, height_px = near_product(random, max(1, random.choice(self.edges) // num_frames))
        return Video(num_frames, width_px, height_px)

    def flops_media(self) -> tuple[Medium, ...]:
        return (
            Images(((224, 224),)),
            Images(((300, 129),)),
            Images(((1, 1),)),
            Images(((84, 140), (420, 112))),
            Video(5, 90, 130),
            Video(2, 400, 56),
        )

    def flops(self, folder: Path, medium: Medium) -> int:
        """Tower and merger on the processor's own patches: attention runs on each frame pair or window apart.

        Eager, because torch counts no operation of its fused attention on a CPU.
        """
        import torch
        from torch.utils.flop_counter import FlopCounterMode
        from transformers import AutoConfig, AutoModelForImageTextToText

        config = AutoConfig.from_pretrained(folder)
        model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval()
        processor = load_processor(folder)
        kind, inputs = ("image", blank_images(medium)) if isinstance(medium, Images) else ("video", clip(medium))
        arrays = processor(text=PAD_TOKENS[kind] * len(inputs[f"{kind}s"]), return_tensors="pt", **inputs)
        pixels = arrays["pixel_values" if kind == "image" else "pixel_values_videos"]
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            getattr(model, f"get_{kind}_features")(pixels, arrays[f"{kind}_grid_thw"])
        return counter.get_total_flops()


def wrapper_tokens(processor: Any, video: Video, visual: int) -> int:
    """Text tokens that the processor writes between a clip's placeholders, when no rate is known."""
    import torch

    pairs = -(-video.num_frames // processor.video_processor.temporal_patch_size)
    merged = processor.video_processor.merge_size
    grid = torch.tensor([[pairs, merged, visual // pairs * merged]])
    inputs = {"video_grid_thw": grid, "video_metadata": [metadata(video)]}
    text = processor.replace_video_token(inputs, 0)
    assert text.count(processor.video_token) == visual
    return len(processor.tokenizer(text.replace(processor.video_token, ""))["input_ids"])


def load_processor(folder: Path) -> Any:
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(folder)


def metadata(video: Video) -> Any:
    from transformers.video_utils import VideoMetadata

    frames = list(range(video.num_frames))
    return VideoMetadata(total_num_frames=video.num_frames, fps=ASSUMED_FRAMES_PER_S, frames_indices=frames)


def blank_images(medium: Images) -> dict[str, Any]:
    from PIL import Image

    return {"images": [Image.new("RGB", size) for size in medium.sizes]}


def clip(medium: Medium) -> dict[str, Any]:
    import torch

    assert isinstance(medium, Video)
    frames = torch.zeros(medium.num_frames, 3, medium.height_px, medium.width_px, dtype=torch.uint8)
    return {
        "videos": [frames],
        "video_metadata": [metadata(medium)],
        "do_sample_frames": False,
        "input_data_format": "channels_first",
    }


def near_product(random: random_module.Random, pixels: int) -> tuple[int, int]:
    """A size of about so many pixels, at most 200 times longer than wide."""
    width = max(1, min(20_000, round(math.sqrt(pixels) * math.exp(random.uniform(-2.6, 2.6)))))
    return width, max(1, pixels // width + random.choice((-29, -1, 0, 1, 2, 29)))


def tiny(name: str, vision: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A published checkpoint's files with towers small enough to run."""
    files = {file: dict(document) for file, document in PUBLISHED[name].items()}
    config = files["config.json"]
    text = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    text |= {"intermediate_size": 32, "vocab_size": 400, "head_dim": 16}
    text |= {"rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3]}}
    if "text_config" in config:
        config["text_config"] = config["text_config"] | text
    else:
        config |= text
    files["config.json"] = config | {"vision_config": config["vision_config"] | vision}
    return files


def saved(case: QwenCase) -> QwenCase:
    """The same with the processors' settings in one file, as transformers 5 saves them."""
    files = {name: document for name, document in case.files.items() if name == "config.json"}
    image = case.files["preprocessor_config.json"]
    video = case.files.get(
        "video_preprocessor_config.json", {"size": {"shortest_edge": 50_000, "longest_edge": 600_000}}
    )
    pixels = {"shortest_edge": 100_000, "longest_edge": 3_000_000}
    image = {key: value for key, value in image.items() if key not in ("min_pixels", "max_pixels")} | {"size": pixels}
    video_type = "Qwen3VLVideoProcessor" if case.family == "qwen3_vl" else "Qwen2VLVideoProcessor"
    video = {**video, "video_processor_type": video_type}
    together = {"processor_class": image["processor_class"], "image_processor": image, "video_processor": video}
    edges = (50_000, 600_000, 100_000, 3_000_000)
    return replace(case, name=f"{case.name}-saved", files=files | {"processor_config.json": together}, edges=edges)


HUB = QwenCase(
    name="qwen2-vl",
    family="qwen2_vl",
    files=tiny("Qwen2-VL-7B", {"depth": 3, "embed_dim": 32, "hidden_size": 32, "num_heads": 2}),
)
CASES = (HUB, saved(HUB))
