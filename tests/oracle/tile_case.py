"""An oracle case of a family that cuts pictures into tiles: transformers' processor is asked every time, with pictures
that have no pixels, and every now and then from end to end with white ones.
"""

from __future__ import annotations

import json
import random as random_module
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from proteus.families.family import Family, PlanRefused
from proteus.families.table import load_family
from tests.oracle.case import Counts, Files, Hub, Images, Judge, Medium, Refusal, around, image_sizes, images
from tests.oracle.weightless import blank, make_resize_weightless, picture


@dataclass(frozen=True, slots=True)
class TileCase(Hub):
    """`marks` are lengths where the rule turns; `placeholder` stands for a picture in the prompt; `named_tokens` become
    attributes of the tokenizer.
    """

    placeholder: str = "<image>"
    named_tokens: Mapping[str, str] = field(default_factory=dict)
    marks: tuple[int, ...] = ()
    pixels: str = "pixel_values"  # what the processor calls the encoder's input
    flops_sizes: tuple[tuple[int, int], ...] = ((640, 480), (300, 3000), (97, 31))

    def flops_media(self) -> tuple[Medium, ...]:
        return tuple(images(self.flops_sizes))

    def write(self, folder: Path) -> None:
        Hub.write(self, folder)
        file = folder / "tokenizer_config.json"
        settings = json.loads(file.read_text())
        file.write_text(json.dumps({**settings, "extra_special_tokens": dict(self.named_tokens)}))

    def processor(self, folder: Path) -> Any:
        """transformers' processor of the folder."""
        from transformers import AutoProcessor

        make_resize_weightless()
        return AutoProcessor.from_pretrained(str(folder))

    def judge(self, folder: Path) -> Judge:
        """The text that the processor puts in the place of each picture. Placeholders are counted as text: splitting
        thousands of them into tokens would take most of the time.
        """
        processor, family = self.processor(folder), load_family(folder)
        settings = processor._merge_kwargs(tokenizer_init_kwargs=processor.tokenizer.init_kwargs)["images_kwargs"]

        def ask(medium: Medium) -> Counts | Refusal:
            assert isinstance(medium, Images)
            pictures = [picture(width, height) for width, height in medium.sizes]
            inputs, texts = processor._process_images(pictures, **settings)
            if other := self.other_shape(family, medium, inputs):
                return other
            text = "".join(texts)
            visual = text.count(processor.image_token)
            return Counts(
                visual, visual + len(processor.tokenizer(text.replace(processor.image_token, ""))["input_ids"])
            )

        return ask

    def other_shape(self, family: Family, medium: Images, inputs: Any) -> Refusal | None:
        """What the encoder is given, where that is not what our plan of a single picture says."""
        *_, count, _, rows, cols = inputs[self.pixels].shape
        try:
            ours = family.plan_image(*medium.sizes[0]).encoder_input
        except PlanRefused:
            return None
        if (ours.count, ours.rows, ours.cols) == (count, rows, cols):
            return None
        return Refusal(f"gives the encoder {count} x {rows} x {cols} px, not {ours}")

    def full_judge(self, folder: Path) -> Judge | None:
        return self.asking(self.processor(folder), blank)

    def media(self, random: random_module.Random, count: int) -> Iterator[Medium]:
        return images(image_sizes(random, count, marks=self.marks))

    def asking(self, processor: Any, make: Callable[[int, int], Any]) -> Judge:
        """The processor from end to end on what `make` makes of a size."""

        def ask(medium: Medium) -> Counts | Refusal:
            assert isinstance(medium, Images)
            pictures = [make(width, height) for width, height in medium.sizes]
            return self.counts(processor, processor(images=pictures, text=self.placeholder * len(pictures)))

        return ask

    def counts(self, processor: Any, answer: Any) -> Counts:
        """Placeholders and all tokens of a prompt that holds nothing but pictures."""
        ids = list(answer["input_ids"][0])
        return Counts(ids.count(processor.image_token_id), len(ids))


def steps(step_px: int, count: int) -> tuple[int, ...]:
    """The first `count` multiples of `step_px` and those of its half between them, with their neighbours by one."""
    return around(half * step_px // 2 for half in range(1, 2 * count + 1))


def with_keys(files: Files, **tables: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Config files with other values in a table of config.json: `with_keys(files, vision_config={...})`.

    Cases use it to take fewer layers: no count of tokens depends on them, and torch counts operations sooner.
    """
    config = dict(files["config.json"])
    for table, values in tables.items():
        config[table] = {**config[table], **values}
    return {**{name: dict(document) for name, document in files.items()}, "config.json": config}


def with_pictures(files: Files, **values: Any) -> dict[str, dict[str, Any]]:
    """Config files with other settings of the image processor."""
    changed = {name: dict(document) for name, document in files.items()}
    changed["preprocessor_config.json"].update(values)
    return changed


def model_without_weights(folder: Path, auto: str = "AutoModelForImageTextToText") -> Any:
    """transformers' model of the folder on the `meta` device, with attention as plain products, which torch counts."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(str(folder))
    with torch.device("meta"):
        return getattr(transformers, auto).from_config(config, attn_implementation="eager").eval().requires_grad_(False)


def operations(run: Callable[[], Any], *, unused: Sequence[str] = ()) -> int:
    """Operations that torch counts while `run` works, but those of modules named `unused`, which nothing reads.

    Masks take no operation that is counted and cannot be looked at without memory: there is none.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    looks = "transformers.masking_utils._ignore_bidirectional_mask_sdpa"
    with torch.no_grad(), mock.patch(looks, return_value=True), FlopCounterMode(display=False) as counter:
        run()
    by_module = {name: sum(one.values()) for name, one in counter.get_flop_counts().items()}
    return counter.get_total_flops() - sum(by_module[name] for name in unused)


def tiles(family: Family, medium: Medium) -> Any:
    """Pixels without memory of the shape that the plan tells for the encoder; (tiles, 3, height, width)."""
    import torch

    assert isinstance(medium, Images)
    ((width, height),) = medium.sizes
    shape = family.plan_image(width, height).encoder_input
    return torch.empty(shape.count, 3, shape.rows, shape.cols, device="meta")


def all_patches(pixels: Any, patch_px: int) -> Any:
    """A mask that hides no patch of the tiles."""
    import torch

    sides = (pixels.shape[2] // patch_px, pixels.shape[3] // patch_px)
    return torch.ones(pixels.shape[0], *sides, dtype=torch.bool, device="meta")
