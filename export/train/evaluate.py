"""Held-out accuracy per question type, with the no-picture baseline beside it.

An answer counts when greedy decoding would give exactly its tokens and then stop: that is so exactly when each of them
is the most likely one after the question and the tokens before it, so one pass scores a batch without a decode loop.
Pictures go through the checkpoint's own image processor at their own size.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from PIL import Image
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoProcessor, LlavaForConditionalGeneration, PreTrainedTokenizerBase

from export.train.tokens import END, IMAGE
from export.world.draw import draw
from export.world.held_out import Item, held_out_items
from export.world.questions import TYPES
from export.world.scene import WORLD_VERSION

TARGETS = {
    "colour": 0.95,
    "shape": 0.95,
    "place": 0.95,
    "count": 0.9,
    "presence": 0.9,
    "read": 0.9,
    "chart": 0.8,
}
_BATCH = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Accuracy of one question type on held-out scenes."""

    questions: int
    accuracy: float
    without_picture: float | None
    target: float | None


def held_out_accuracy(
    model: LlavaForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    *,
    per_type: int = 300,
    baseline: bool = True,
    types: tuple[str, ...] = (*TYPES, "which"),
    quiet: bool = True,
) -> dict[str, Row]:
    """One row per question type; `baseline` asks the same questions without the pictures too."""
    rows = {}
    for type_ in track(types, description="evaluating", disable=quiet):
        items = held_out_items(type_, per_type)
        rows[type_] = Row(
            questions=len(items),
            accuracy=_share_right(model, tokenizer, items, with_pictures=True),
            without_picture=_share_right(model, tokenizer, items, with_pictures=False) if baseline else None,
            target=TARGETS.get(type_),
        )
    return rows


@torch.no_grad()
def _share_right(
    model: LlavaForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    items: list[Item],
    *,
    with_pictures: bool,
) -> float:
    right = 0
    for start in range(0, len(items), _BATCH):
        part = items[start : start + _BATCH]
        prompts = [_prompt(tokenizer, model, item, with_pictures) for item in part]
        answers = [tokenizer.encode(item.question.answer + END, add_special_tokens=False) for item in part]
        length = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
        ids = torch.full((len(part), length), tokenizer.pad_token_id)
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        pixel_values = _pixel_values(model, part) if with_pictures else None
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=pixel_values).logits
        best = logits.argmax(-1)
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            right += best[row, len(prompt) - 1 : len(prompt) + len(answer) - 1].tolist() == answer
    return right / len(items)


def _prompt(
    tokenizer: PreTrainedTokenizerBase, model: LlavaForConditionalGeneration, item: Item, with_pictures: bool
) -> list[int]:
    pictures = [{"type": "image"}] * len(item.scenes) if with_pictures else []
    message = {"role": "user", "content": [*pictures, {"type": "text", "text": item.question.text}]}
    text = tokenizer.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
    text = text.replace(IMAGE, IMAGE * model.config.image_seq_length)
    return tokenizer.encode(text, add_special_tokens=False)


def _pixel_values(model: LlavaForConditionalGeneration, items: list[Item]) -> torch.Tensor:
    side = model.config.vision_config.image_size
    processor = image_processor(side)
    pictures: list[Image.Image] = [draw(scene_) for item in items for scene_ in item.scenes]
    return processor(pictures, return_tensors="pt")["pixel_values"]


def image_processor(side: int):  # the class depends on what transformers finds installed
    """The demo's image processor: the whole picture resized to a square, values in -1..1."""
    from transformers import CLIPImageProcessor

    return CLIPImageProcessor(
        size={"height": side, "width": side},
        do_center_crop=False,
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )


def accuracy_table(rows: dict[str, Row]) -> Table:
    table = Table("question", "n", "accuracy", "no picture", "target", title=f"held-out scenes, world {WORLD_VERSION}")
    for type_, row in rows.items():
        reached = row.target is None or row.accuracy >= row.target
        table.add_row(
            type_,
            str(row.questions),
            f"[{'green' if reached else 'red'}]{row.accuracy:.3f}",
            "" if row.without_picture is None else f"{row.without_picture:.3f}",
            "" if row.target is None else f"≥ {row.target:.2f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m export.train.evaluate", description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--per-type", type=int, default=300)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = LlavaForConditionalGeneration.from_pretrained(arguments.checkpoint).eval()
    processor = AutoProcessor.from_pretrained(arguments.checkpoint)
    rows = held_out_accuracy(model, processor.tokenizer, per_type=arguments.per_type, quiet=arguments.json)
    if arguments.json:
        print(json.dumps({type_: asdict(row) for type_, row in rows.items()}, indent=2))
    else:
        Console().print(accuracy_table(rows))


if __name__ == "__main__":
    main()
