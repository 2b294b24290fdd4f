"""What a family's oracle case states: a checkpoint folder, transformers' answer for a medium, and media worth asking.

Cases live in tests/oracle/families/<name>.py as `CASES`; tests/oracle/run.py compares their answers with our plans.
Import transformers inside functions only, after `torchvision_shim.install()`.
"""

from __future__ import annotations

import json
import random as random_module
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Files = Mapping[str, Mapping[str, Any]]  # file name -> JSON document


@dataclass(frozen=True, slots=True)
class Images:
    """Pictures of one request, (width, height) in px."""

    sizes: tuple[tuple[int, int], ...]

    @property
    def pixels(self) -> int:
        return sum(width * height for width, height in self.sizes)


@dataclass(frozen=True, slots=True)
class Video:
    num_frames: int
    width_px: int
    height_px: int

    @property
    def pixels(self) -> int:
        return self.num_frames * self.width_px * self.height_px


@dataclass(frozen=True, slots=True)
class Audio:
    num_samples: int

    @property
    def pixels(self) -> int:
        return self.num_samples


Medium = Images | Video | Audio


@dataclass(frozen=True, slots=True)
class Counts:
    """Of all media of the question together; `total` = visual + wrapper tokens."""

    visual_tokens: int
    total_tokens: int
    cross_rows: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: str  # printed, never compared


Judge = Callable[[Medium], Counts | Refusal | None]  # None: this judge cannot be asked about the medium


class OracleCase(Protocol):
    """One configuration of one family. Judges may raise what transformers raises: ValueError and its like count as a
    refusal (see REFUSALS in run.py).
    """

    name: str  # unique: "gemma3-pan-and-scan"
    family: str  # stem of the module in proteus.families: "gemma3"

    def write(self, folder: Path) -> None:
        """Write config.json, processor files and tokenizer in the hub's layout."""

    def judge(self, folder: Path) -> Judge:
        """Build transformers' answer from the folder; asked for every medium, so it should be cheap."""

    def full_judge(self, folder: Path) -> Judge | None:
        """A real processor call on blank media, asked once for `full_every` media, of at most `full_pixels`; None when
        `judge` makes real calls already.
        """

    full_every: int
    full_pixels: int

    def media(self, random: random_module.Random, count: int) -> Iterator[Medium]:
        """`count` media, random and adversarial; the same for the same `random`."""

    def flops_media(self) -> tuple[Medium, ...]:
        """Media for which `flops` is asked; small."""

    def flops(self, folder: Path, medium: Medium) -> int:
        """Operations that torch counts in transformers' encoder and connector for the medium."""


@dataclass(frozen=True, slots=True)
class Hub:
    """What is common to cases: a folder of JSON files and a byte-level tokenizer that knows `special_tokens`."""

    name: str
    family: str
    files: Files
    special_tokens: tuple[str, ...] = ()
    text_tokens: tuple[str, ...] = ()  # ordinary words that are one token, "\n\n" for example
    full_every: int = 100
    full_pixels: int = 2_000_000

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, document in self.files.items():
            (folder / name).write_text(json.dumps(document, indent=1), encoding="utf-8")
        write_tokenizer(folder, self.special_tokens, self.text_tokens)

    def full_judge(self, folder: Path) -> Judge | None:
        return None

    def flops_media(self) -> tuple[Medium, ...]:
        return ()

    def flops(self, folder: Path, medium: Medium) -> int:
        raise TypeError(f"{self.name} lists media for FLOPs and has no judge of them")


def write_tokenizer(folder: Path, special_tokens: Sequence[str], text_tokens: Sequence[str] = ()) -> None:
    """A tokenizer of the 256 bytes, the special tokens and the text tokens, as tokenizer.json and its config.

    A `PreTrainedTokenizerFast`; attributes that processors read (`image_token` …) are added by `special_attributes`.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<pad>", "<s>", "</s>", *special_tokens)])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in text_tokens])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": 1_000_000,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def around(steps: Iterable[int]) -> tuple[int, ...]:
    """Each length and its neighbours by one: where rounding turns."""
    return tuple(sorted({near for step in steps for near in (step - 1, step, step + 1) if near > 0}))


def image_sizes(
    random: random_module.Random, count: int, *, marks: Sequence[int], longest_px: int = 20_000
) -> Iterator[tuple[int, int]]:
    """`count` sizes (width, height): a third of them pairs of `marks` and of small, prime and huge sides, a third
    extreme ratios and ties, the rest spread evenly over the logarithm of the sides; transposes follow now and then.
    """
    sides = sorted({*marks, 1, 2, 3, 7, 13, 97, 101, 499, 997, 1999, 4999, 7919, 9973, 15013, longest_px} - {0})
    sides = [side for side in sides if side <= longest_px]

    def spread() -> int:
        return max(1, min(longest_px, round(longest_px ** random.random())))

    def extreme() -> tuple[int, int]:
        side, ratio = random.choice(sides), random.choice((1, 1.5, 2, 2.5, 3, 4, 7, 50, 199, 200, 201, 1000))
        return side, max(1, min(longest_px, round(side * ratio) + random.choice((-1, 0, 1))))

    done = 0
    while done < count:
        kind = done % 3
        size = (random.choice(sides), random.choice(sides)) if kind == 0 else extreme() if kind == 1 else None
        width, height = size or (spread(), spread())
        yield from ((width, height),)
        done += 1
        if done < count and random.random() < 0.3:
            yield from ((height, width),)
            done += 1


def images(sizes: Iterable[tuple[int, int]]) -> Iterator[Images]:
    """One picture a request."""
    return (Images((size,)) for size in sizes)
