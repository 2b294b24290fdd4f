"""LLaVA-1.5, LLaVA-NeXT, LLaVA-NeXT-Video and LLaVA-OneVision as transformers counts and computes them.

The cheap judge gives the processor's own counting method what its real call would; the full judge is that call. The
models lie on torch's meta device at their published widths. Layers behind the deepest chosen feature are taken off
first: their output is not used and no export holds them.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.families.published_llava import PUBLISHED
from tests.oracle.case import Counts, Hub, Images, Judge, Medium, Refusal, Video, around, image_sizes

MAX_RATIO = 40  # of real calls: a resize of the shortest side makes the longest one that much longer
TILE_MARKS = around([*range(14, 340, 14), 384, 448, 672, 768, 1008, 1152, 1344, 1536, 1920, 2304])


@dataclass(frozen=True, slots=True)
class Llava(Hub):
    """One picture a request, or `together` of them; videos where `videos` says so."""

    special_tokens: tuple[str, ...] = ("<image>", "<video>")
    full_every: int = 30
    together: int = 1
    videos: bool = False

    def media(self, random: random_module.Random, count: int) -> Iterator[Medium]:
        sizes = on_patch_edges(random, image_sizes(random, count * self.together, marks=TILE_MARKS))
        for size, *others in zip(*[sizes] * self.together, strict=True):
            yield Video(random.randint(1, 64), *size) if self.videos else Images((size, *others))

    def judge(self, folder: Path) -> Judge:
        processor = load_processor(folder)
        counted: dict[tuple[int, ...], int] = {}

        def count_image(sizes: tuple[tuple[int, int], ...], index: int) -> int:
            width, height = sizes[index]
            inputs = {
                "batch_num_images": [len(sizes)],
                "image_sizes": [(high, wide) for wide, high in sizes],
                "pixel_values": [[tile(processor)] for _ in sizes],
            }
            if processor.__class__.__name__ == "LlavaProcessor":
                inputs["pixel_values"] = [tile(processor) for _ in sizes]
            key = (width, height, len(sizes))
            if key not in counted:
                counted[key] = processor.replace_image_token(inputs, index).count(processor.image_token)
            return counted[key]

        def ask(medium: Medium) -> Counts:
            if isinstance(medium, Video):
                frames = tile(processor, side_of(processor.video_processor)).expand(medium.num_frames, -1, -1, -1)
                text = processor.replace_video_token({"pixel_values_videos": [frames]}, 0)
                tokens = text.count(processor.video_token)
            else:
                tokens = sum(count_image(medium.sizes, index) for index in range(len(medium.sizes)))
            return Counts(tokens, tokens)

        return ask

    def full_judge(self, folder: Path) -> Judge | None:
        import torch

        processor = load_processor(folder)

        def ask(medium: Medium) -> Counts | Refusal | None:
            if ratio(medium) > MAX_RATIO:
                return None
            if isinstance(medium, Video):
                frames = torch.zeros(medium.num_frames, 3, medium.height_px, medium.width_px, dtype=torch.uint8)
                call = processor(text=processor.video_token, videos=[frames])
                token = processor.video_token
            else:
                pictures = [torch.zeros(3, height, width, dtype=torch.uint8) for width, height in medium.sizes]
                call = processor(text=processor.image_token * len(pictures), images=[pictures])
                token = processor.image_token
            ids = call["input_ids"][0]
            visual = int((torch.as_tensor(ids) == processor.tokenizer.convert_tokens_to_ids(token)).sum())
            return Counts(visual, len(ids))

        return ask

    def flops_media(self) -> tuple[Medium, ...]:
        sizes = ((336, 336), (640, 480), (30, 4000), (2000, 1500))
        if self.videos:
            return tuple(Video(frames, 320, 240) for frames in (1, 3, 8))
        return tuple(Images((size,) * self.together) for size in sizes)

    def flops(self, folder: Path, medium: Medium) -> int:
        import torch
        from torch.utils.flop_counter import FlopCounterMode

        model = meta_model(folder)
        side = model.config.vision_config.image_size
        with FlopCounterMode(display=False) as counter, torch.device("meta"):
            if isinstance(medium, Video):
                model.get_video_features(torch.empty(1, medium.num_frames, 3, side, side))
            else:
                extra = {}
                if model.config.model_type == "llava_onevision":
                    extra["batch_num_images"] = [len(medium.sizes)]
                pixels, sizes = tiles(model, medium, side)
                if sizes is not None:
                    extra["image_sizes"] = sizes
                model.get_image_features(pixels, **extra)
        return counter.get_total_flops()


def on_patch_edges(random: random_module.Random, sizes: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The sizes, every fourth with sides whose ratio puts the padding's edge on the edge of a patch, or 1 px beside."""
    for number, (width, height) in enumerate(sizes):
        if number % 4 == 0:
            lines = random.choice((24, 27)) * random.choice((1, 2, 3, 4, 6))
            step = random.randint(1, 20_000 // lines)
            long, short = lines * step, random.randint(1, lines) * step + random.choice((-1, 0, 0, 1))
            width, height = random.choice(((long, max(1, short)), (max(1, short), long)))
        yield width, height


def load_processor(folder: Path) -> Any:
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(folder)


def side_of(processor: Any) -> int:
    """What a real call makes of any picture."""
    crop = processor.crop_size if processor.do_center_crop else None
    size = crop or processor.size
    return int(size["height"] if size.get("height") else size["shortest_edge"])


def tile(processor: Any, side_px: int | None = None) -> Any:
    import torch

    side_px = side_px or side_of(processor.image_processor)
    return torch.zeros(1, 1, 1).expand(3, side_px, side_px)


def ratio(medium: Medium) -> float:
    sizes = medium.sizes if isinstance(medium, Images) else ((medium.width_px, medium.height_px),)
    return max(max(size) / min(size) for size in sizes)


def meta_model(folder: Path) -> Any:
    """The checkpoint's model without weights, its language model cut to one layer and its tower to those in use."""
    import torch
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.from_pretrained(folder)
    config.text_config.num_hidden_layers = 1
    if getattr(config.text_config, "layer_types", None):
        config.text_config.layer_types = config.text_config.layer_types[:1]
    chosen = getattr(config, "vision_feature_layer", -1)
    behind = [config.vision_config.num_hidden_layers + 1 + i if i < 0 else i for i in to_list(chosen)]
    config.vision_feature_layer = behind if isinstance(chosen, list) else behind[0]
    config.vision_config.num_hidden_layers = max(behind)
    with torch.device("meta"):
        return AutoModel.from_config(config).eval()


def to_list(layers: int | list[int]) -> list[int]:
    return layers if isinstance(layers, list) else [layers]


def tiles(model: Any, medium: Images, side_px: int) -> tuple[Any, list[tuple[int, int]] | None]:
    """(pixel_values, image_sizes) as the image processor would give them."""
    import torch

    if model.config.model_type == "llava":
        return torch.empty(len(medium.sizes), 3, side_px, side_px), None
    from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

    sizes = [(height, width) for width, height in medium.sizes]
    counts = [image_size_to_num_patches(size, model.config.image_grid_pinpoints, side_px) for size in sizes]
    return torch.empty(len(sizes), max(counts), 3, side_px, side_px), sizes


def changed(name: str, changes: dict[str, dict[str, Any]] | None = None) -> dict[str, dict[str, Any]]:
    """The published files with some keys replaced and a tower of four layers, which counts as surely as all of them."""
    files = {file: {**content, **(changes or {}).get(file, {})} for file, content in PUBLISHED[name].items()}
    config = files["config.json"]
    config["vision_config"] = {**config["vision_config"], "num_hidden_layers": 4}
    return files


LLAVA, NEXT = "LLaVA-1.5-7B", "LLaVA-NeXT-Mistral-7B"
VIDEO, ONEVISION = "LLaVA-NeXT-Video-7B", "LLaVA-OneVision-Qwen2-7B"
FULL = {"vision_feature_select_strategy": "full"}
TWO_LAYERS = {"config.json": {**FULL, "vision_feature_layer": [-3, 3]}, "processor_config.json": FULL}
WIDE = {"image_grid_pinpoints": [[336, 336 * n] for n in range(1, 10)] + [[336 * n, 336] for n in range(2, 7)]}
CAPPED = {"vision_aspect_ratio": "anyres_max_4"}
CASES = (
    Llava("llava", "llava", changed(LLAVA)),
    Llava("llava-full", "llava", changed(LLAVA, TWO_LAYERS)),
    Llava("llava-next", "llava_next", changed(NEXT)),
    Llava("llava-next-wide", "llava_next", changed(NEXT, {"config.json": WIDE, "preprocessor_config.json": WIDE})),
    Llava("llava-next-video", "llava_next_video", changed(VIDEO), videos=True),
    Llava("llava-next-video-images", "llava_next_video", changed(VIDEO)),
    Llava("llava-onevision", "llava_onevision", changed(ONEVISION)),
    Llava(
        "llava-onevision-capped",
        "llava_onevision",
        changed(ONEVISION, {"config.json": CAPPED, "processor_config.json": CAPPED}),
    ),
    Llava("llava-onevision-together", "llava_onevision", changed(ONEVISION), together=3),
    Llava("llava-onevision-video", "llava_onevision", changed(ONEVISION), videos=True),
)
