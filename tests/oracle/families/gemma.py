"""PaliGemma and Gemma 3 as transformers counts and computes them.

The judges' tokenizer holds what Gemma's own holds of Gemma 3's wrapper: two newlines and each word as one token. The
<bos> and the newline that PaliGemma's processor puts into a prompt once are taken off its total.
"""

from __future__ import annotations

import json
import random as random_module
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.oracle.case import Counts, Hub, Images, Judge, Medium, Refusal, around, image_sizes, images
from tests.oracle.families.llava import changed, load_processor, meta_model, ratio

MAX_RATIO = 40  # of real calls, whose crops take time
SENTENCES = "Here is the original image and here are some crops to help you see better"
WORDS = ("\n\n", *(word if word == "Here" else f" {word}" for word in dict.fromkeys(SENTENCES.split())))
GEMMA_TOKENS = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
MARKS = around([*range(64, 1100, 64), 128 * 11, 256 * 5, 256 * 6, 2048, 4096])


@dataclass(frozen=True, slots=True)
class Gemma(Hub):
    full_every: int = 20

    def media(self, random: random_module.Random, count: int) -> Iterator[Medium]:
        return images(near_ratios(random, image_sizes(random, count, marks=MARKS)))

    def flops_media(self) -> tuple[Medium, ...]:
        return tuple(Images((size,)) for size in ((896, 896), (1600, 700), (300, 2000)))

    def flops(self, folder: Path, medium: Medium) -> int:
        import torch
        from torch.utils.flop_counter import FlopCounterMode

        model = meta_model(folder)
        side = model.config.vision_config.image_size
        squares = 1
        if self.family == "gemma3":
            squares += self.crops(load_processor(folder), medium.sizes[0])
        with FlopCounterMode(display=False) as counter, torch.device("meta"):
            model.get_image_features(torch.empty(squares, 3, side, side))
        return counter.get_total_flops()

    @staticmethod
    def crops(processor: Any, size: tuple[int, int]) -> int:
        """Crops that transformers' own pan & scan cuts, on a picture without pixels."""
        import torch

        if not processor.image_processor.do_pan_and_scan:
            return 0
        picture = torch.empty(1, 3, size[1], size[0], device="meta")
        return len(processor.image_processor.pan_and_scan_batched(picture, **pan_and_scan(processor)))


@dataclass(frozen=True, slots=True)
class PaliGemma(Gemma):
    special_tokens: tuple[str, ...] = ("<image>",)

    def judge(self, folder: Path) -> Judge:
        processor = load_processor(folder)

        def ask(medium: Medium) -> Counts:
            sizes = [(height, width) for width, height in medium.sizes]
            (tokens,) = processor._get_num_multimodal_tokens(image_sizes=sizes).num_image_tokens
            return Counts(tokens, tokens)

        return ask

    def full_judge(self, folder: Path) -> Judge:
        processor = load_processor(folder)
        prompt = [processor.tokenizer.bos_token_id, *processor.tokenizer.encode("\n", add_special_tokens=False)]

        def ask(medium: Medium) -> Counts | Refusal | None:
            if ratio(medium) > MAX_RATIO:
                return None
            ids = processor(text="<image>", images=[[blank(size) for size in medium.sizes]])["input_ids"][0]
            return Counts(list(ids).count(processor.image_token_id), len(ids) - len(prompt))

        return ask


@dataclass(frozen=True, slots=True)
class Gemma3(Gemma):
    special_tokens: tuple[str, ...] = tuple(GEMMA_TOKENS.values())
    text_tokens: tuple[str, ...] = WORDS

    def write(self, folder: Path) -> None:
        Hub.write(self, folder)
        file = folder / "tokenizer_config.json"
        config = json.loads(file.read_text())
        file.write_text(json.dumps({**config, **GEMMA_TOKENS, "extra_special_tokens": GEMMA_TOKENS}))

    def judge(self, folder: Path) -> Judge:
        """The text that the processor puts in a placeholder's place, tokenised; the same for equal numbers of crops."""
        processor = load_processor(folder)
        known: dict[int, Counts] = {}

        def ask(medium: Medium) -> Counts:
            crops = self.crops(processor, medium.sizes[0])
            if crops not in known:
                text = processor.replace_image_token({"num_crops": [crops]}, 0)
                known[crops] = counts(processor, processor.tokenizer.encode(text, add_special_tokens=False))
            return known[crops]

        return ask

    def full_judge(self, folder: Path) -> Judge:
        processor = load_processor(folder)
        settings = pan_and_scan(processor) if processor.image_processor.do_pan_and_scan else {}

        def ask(medium: Medium) -> Counts | Refusal | None:
            if ratio(medium) > MAX_RATIO:
                return None
            pictures = [[blank(size) for size in medium.sizes]]
            asked = {"images_kwargs": {"do_pan_and_scan": True, **settings}} if settings else {}
            call = processor(text=processor.boi_token, images=pictures, **asked)
            return counts(processor, call["input_ids"][0])

        return ask


def pan_and_scan(processor: Any) -> dict[str, Any]:
    """Settings of the folder, else those that the processor class passes in a call."""
    settings = {key: processor.images_kwargs[key] for key in processor.images_kwargs if key.startswith("pan_")}
    own = {key: getattr(processor.image_processor, key) for key in settings}
    return {key: value if own[key] is None else own[key] for key, value in settings.items()}


def counts(processor: Any, ids: list[int]) -> Counts:
    ids = list(ids)
    return Counts(ids.count(processor.tokenizer.image_token_id), len(ids))


def blank(size: tuple[int, int]) -> Any:
    import torch

    return torch.zeros(3, size[1], size[0], dtype=torch.uint8)


def near_ratios(random: random_module.Random, sizes: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The sizes, every fourth with a longer side near a ratio at which the number of crops turns."""
    for number, (width, height) in enumerate(sizes):
        if number % 4 == 0:
            short = random.choice((257, 300, 511, 640, 1000, 2047))
            long = round(short * random.choice((1.0, 1.2, 1.5, 2.5, 3.5, 4.5))) + random.choice((-1, 0, 1))
            width, height = random.choice(((short, long), (long, short)))
        yield width, height


OTHER_CROPS = {
    "pan_and_scan_min_crop_size": 128,
    "pan_and_scan_max_num_crops": 6,
    "pan_and_scan_min_ratio_to_activate": 1.5,
}
CASES = (
    PaliGemma("paligemma", "paligemma", changed("PaliGemma-3B-224")),
    Gemma3("gemma3", "gemma3", changed("Gemma-3-4B")),
    Gemma3("gemma3-pan-and-scan", "gemma3", changed("Gemma-3-4B with pan & scan")),
    Gemma3(
        "gemma3-other-crops",
        "gemma3",
        changed("Gemma-3-4B with pan & scan", {"preprocessor_config.json": OTHER_CROPS}),
    ),
)
