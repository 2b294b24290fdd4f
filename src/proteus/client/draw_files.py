"""Which file each picture of a drawing is written to: as named, and otherwise by a name that is free."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from proteus.client.drawing import Drawn
from proteus.client.errors import InvalidInput

FormatName = Literal["png", "jpeg", "webp"]
FORMATS: dict[str, FormatName] = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}  # by suffix
SUFFIXES: dict[FormatName, str] = {"png": ".png", "jpeg": ".jpg", "webp": ".webp"}
DEFAULT_STEM = "drawing"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnFiles:
    """One picture goes to `stem` + `suffix`, several to `stem`-0, `stem`-1 … counted from `first`."""

    folder: Path
    stem: str
    suffix: str
    format: FormatName
    first: int | None  # None: the one picture has no number
    overwrite: bool

    @classmethod
    def plan(cls, out: str | None, format: FormatName | None, *, pictures: int, overwrite: bool) -> DrawnFiles:
        """`out` is a file, a folder that exists or ends with /, or none; raises `InvalidInput` before any drawing.

        A name that `out` gives must be free, unless it may be overwritten. In a folder, or without `out`, numbers go
        on from those that are there.
        """
        named = Path(out or ".")
        if named.is_dir() or (out or "").endswith("/"):
            return cls._in_folder(named, format or "png", pictures)
        if not named.parent.is_dir():
            raise InvalidInput(f"cannot write the picture {out}: there is no folder {named.parent}")
        chosen = _format_of(named, format)
        stem, suffix = (named.stem, named.suffix) if named.suffix else (named.name, SUFFIXES[chosen])
        first = None if pictures == 1 else 0
        files = cls(folder=named.parent, stem=stem, suffix=suffix, format=chosen, first=first, overwrite=overwrite)
        files._refuse_taken(pictures)
        return files

    @classmethod
    def _in_folder(cls, folder: Path, format: FormatName, pictures: int) -> DrawnFiles:
        stem, suffix = DEFAULT_STEM, SUFFIXES[format]
        is_free = not (folder / f"{stem}{suffix}").exists()
        first = None if pictures == 1 and is_free else max(_numbers(folder, stem, suffix), default=-1) + 1
        return cls(folder=folder, stem=stem, suffix=suffix, format=format, first=first, overwrite=False)

    def path(self, index: int) -> Path:
        """Of the picture of this index."""
        number = "" if self.first is None else f"-{self.first + index}"
        return self.folder / f"{self.stem}{number}{self.suffix}"

    def save(self, picture: Drawn) -> Path:
        """Write it, into a folder that is made where there is none, and say where; raises `InvalidInput`."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"cannot make the folder {self.folder}: {error.strerror}") from None
        return picture.save(self.path(picture.index), overwrite=self.overwrite)

    def _refuse_taken(self, pictures: int) -> None:
        if self.overwrite:
            return
        if self.first is None:
            taken = [0] if self.path(0).exists() else []
        else:
            taken = sorted(number for number in _numbers(self.folder, self.stem, self.suffix) if number < pictures)
        if taken:
            raise InvalidInput(f"{self.path(taken[0])} exists: give another --out, or --overwrite")


def _numbers(folder: Path, stem: str, suffix: str) -> list[int]:
    """The n of every file `stem`-n`suffix` of the folder."""
    pattern = re.compile(rf"{re.escape(stem)}-([0-9]+){re.escape(suffix)}")
    files = folder.iterdir() if folder.is_dir() else ()
    return [int(found[1]) for file in files if (found := pattern.fullmatch(file.name)) is not None]


def _format_of(out: Path, format: FormatName | None) -> FormatName:
    """As `format` says, or else as the name ends; raises `InvalidInput` where they contradict each other."""
    if not out.suffix:
        return format or "png"
    named = FORMATS.get(out.suffix.lower())
    if named is None:
        raise InvalidInput(f"{out} is no name of a drawing: end it with {', '.join(FORMATS)}")
    if format is not None and format != named:
        raise InvalidInput(f"{out} ends as {named}, and the format asked for is {format}: change one of them")
    return named
