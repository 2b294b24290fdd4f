"""Response messages of the `draw` model -> previews and pictures, and at the end the drawing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, TypeVar

from proteus.client.drawing import Drawing, Drawn, DrawUsage, PictureCost, Preview
from proteus.client.wire import StreamReader

Row = TypeVar("Row", bound=DrawUsage | PictureCost | Preview | Drawn)


class DrawingBuilder(StreamReader[Preview | Drawn]):
    """Collects one stream: `add` every message, then take `drawing()`."""

    def __init__(self) -> None:
        super().__init__()
        self._pictures: dict[int, Drawn] = {}

    def drawing(self) -> Drawing:
        """The whole; raises `ServerError` when the stream ended without its report."""
        report = self.report()
        return Drawing(
            pictures=tuple(picture for _, picture in sorted(self._pictures.items())),
            finish_reason=report["finish_reason"],
            usage=_row(DrawUsage, report["usage"]),
            stages_ms=MappingProxyType(dict(report["stages_ms"])),
            first_preview_ms=report.get("first_preview_ms"),
            costs=tuple(_row(PictureCost, image) for image in report.get("images", ())),
        )

    def _item(self, tensors: Mapping[str, Any]) -> Preview | Drawn | None:
        """None for an event of a kind that this version does not know."""
        event = json.loads(tensors.get("event", "{}"))
        pixels = {"data": tensors.get("image", b"")}
        if event.get("kind") == "preview":
            return _row(Preview, event | pixels)
        if event.get("kind") != "image":
            return None
        picture = _row(Drawn, event | pixels)
        self._pictures[picture.index] = picture
        return picture


def _row(kind: type[Row], told: Mapping[str, Any]) -> Row:
    """What this version knows of it: a server may have learned to tell more."""
    return kind(**{field.name: told[field.name] for field in fields(kind)})
