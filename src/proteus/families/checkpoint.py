"""Reads the JSON files of a checkpoint folder in the hub's layout; every mistake names file, key, value and limit.

A key that is absent takes the default of transformers' config or processor class, which the caller hands in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proteus.errors import ProteusError

MAX_CONFIG_BYTES = 4 << 20
MAX_WHOLE = 2**31 - 1  # of any size or count


class UnsupportedCheckpoint(ProteusError):
    """The checkpoint folder cannot be read as this family; the text names file, key and value. Stops the load."""

    code = "unsupported_checkpoint"


@dataclass(frozen=True, slots=True)
class ConfigTable:
    """One JSON object of a file; `name` and `prefix` lead to it in errors ("config.json: vision_config.patch_size")."""

    name: str
    values: Mapping[str, Any]
    prefix: str = ""

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it stands; null counts as absent."""
        value = self.values.get(key)
        return default if value is None else value

    def table(self, key: str) -> ConfigTable:
        """The object under `key`, empty when absent; raises UnsupportedCheckpoint when it is none."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, value, "an object")
        return ConfigTable(self.name, value, f"{self.prefix}{key}.")

    def positive(self, key: str, default: int | None = None, *, most: int = MAX_WHOLE) -> int:
        """A whole number above 0, not above `most`; raises UnsupportedCheckpoint."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(key, value, "a whole number above 0")
        if value > most:
            raise self.wrong(key, value, f"at most {most:,}")
        return value

    def layer_numbers(self, key: str, default: Sequence[int]) -> tuple[int, ...]:
        """A list of layer numbers; raises UnsupportedCheckpoint."""
        value = self.get(key, list(default))
        if not isinstance(value, list) or not all(type(number) is int and number >= 0 for number in value):
            raise self.wrong(key, value, "a list of layer numbers")
        return tuple(value)

    def number(self, key: str, default: float) -> float:
        """A finite number; raises UnsupportedCheckpoint."""
        value = self.get(key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or value != value
            or abs(value) == float("inf")
        ):
            raise self.wrong(key, value, "a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """true or false; raises UnsupportedCheckpoint."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def one_of(self, key: str, known: Sequence[Any], default: Any = None) -> Any:
        """A value that we know how to serve; raises UnsupportedCheckpoint listing the known ones."""
        value = self.get(key, default)
        if value not in known:
            raise self.wrong(key, value, f"known are {', '.join(map(str, known))}")
        return value

    def sides_px(self, key: str, default: int | None = None) -> tuple[int, int]:
        """(height, width) from `n`, `[h, w]` or `{"height": h, "width": w}`; raises UnsupportedCheckpoint."""
        value = self.get(key, default)
        if isinstance(value, dict) and {name for name, side in value.items() if side is not None} == {
            "height",
            "width",
        }:
            value = [value["height"], value["width"]]
        if isinstance(value, int) and not isinstance(value, bool):
            value = [value, value]
        if (
            not isinstance(value, list)
            or len(value) != 2
            or not all(isinstance(side, int) and side > 0 for side in value)
        ):
            raise self.wrong(key, value, "height and width in px, each a whole number above 0")
        return value[0], value[1]

    def wrong(self, key: str, value: object, limit: str) -> UnsupportedCheckpoint:
        """The error for a value that cannot be served."""
        return UnsupportedCheckpoint(
            f"{self.name}: {self.prefix}{key} = {repr(value)[:80]}",
            limit=limit,
            fix="use a checkpoint of the family as published",
        )


def read_table(path: Path) -> ConfigTable:
    """One JSON file; raises UnsupportedCheckpoint when it is missing, too large or no JSON object."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise UnsupportedCheckpoint(
            f"{path} cannot be read ({error.strerror})", fix="give a checkpoint folder"
        ) from error
    if len(text) > MAX_CONFIG_BYTES:
        raise UnsupportedCheckpoint(
            f"{path} is too large", limit=f"{MAX_CONFIG_BYTES:,} bytes", fix="give a config file"
        )
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnsupportedCheckpoint(f"{path} is not JSON", fix="download the file again") from error
    if not isinstance(document, dict):
        raise UnsupportedCheckpoint(f"{path} holds no JSON object", fix="download the file again")
    return ConfigTable(str(path), document)


def read_config(folder: Path) -> ConfigTable:
    """`config.json` of a checkpoint folder."""
    return read_table(folder / "config.json")


def read_processor_part(folder: Path, part: str, own_file: str) -> ConfigTable:
    """Settings of one processor: a file of its own, or its part of `processor_config.json` in newer checkpoints.

    `part` is the key there ("image_processor", "video_processor", "feature_extractor"), `own_file` the older file
    ("preprocessor_config.json", "video_preprocessor_config.json"). The shared file wins, as in transformers.
    Raises UnsupportedCheckpoint when neither is there.
    """
    shared = folder / "processor_config.json"
    if shared.exists():
        table = read_table(shared)
        if part in table:
            return table.table(part)
    if not (folder / own_file).exists():
        raise UnsupportedCheckpoint(f"{folder / own_file} is missing", fix="add the checkpoint's processor files")
    return read_table(folder / own_file)


def read_processor(folder: Path) -> ConfigTable:
    """The processor's own settings (`processor_config.json`), empty when the folder has none."""
    shared = folder / "processor_config.json"
    return read_table(shared) if shared.exists() else ConfigTable(str(shared), {})
