"""A drawing's settings, cost and stage times, as lines for a person and as one document for a program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from proteus.client.drawing import Drawing, Drawn


def picture_line(path: Path, picture: Drawn) -> str:
    """Where it is, and what draws it again."""
    settings = picture.settings
    return (
        f"{path}  {picture.width_px}x{picture.height_px} {picture.format}; seed {picture.seed}, "
        f"image {picture.image_index}, {settings['steps']} steps, guidance {settings['guidance']:g}, "
        f"{settings['sampler']}"
    )


def drawing_lines(drawing: Drawing) -> str:
    """Cost and stage times in two lines, a third where previews came."""
    usage = drawing.usage
    accelerator_ms = sum(cost.accelerator_ms for cost in drawing.costs)
    stages = " · ".join(f"{name} {ms:.1f}" for name, ms in drawing.stages_ms.items())
    lines = [
        f"cost    {usage.evaluations:,} evaluations, {usage.token_passes:,} token passes, "
        f"{accelerator_ms:.1f} ms of the denoiser; {usage.text_tokens} text tokens; finish: {drawing.finish_reason}",
        f"ms      {stages}",
    ]
    if drawing.first_preview_ms is not None:
        lines.append(f"        first preview after {drawing.first_preview_ms:.1f}")
    return "\n".join(lines)


def drawing_json(drawing: Drawing, paths: Mapping[int, Path]) -> str:
    """One JSON document: the files that were written, their seeds and settings, and the bill."""
    document = {
        "pictures": [_picture(picture, paths[picture.index]) for picture in drawing.pictures],
        "finish_reason": drawing.finish_reason,
        "usage": asdict(drawing.usage),
        "stages_ms": dict(drawing.stages_ms),
        "first_preview_ms": drawing.first_preview_ms,
        "costs": [asdict(cost) for cost in drawing.costs],
    }
    return json.dumps(document, ensure_ascii=False, indent=2)


def _picture(picture: Drawn, path: Path) -> dict[str, object]:
    return {
        "path": str(path),
        "index": picture.index,
        "seed": picture.seed,
        "image_index": picture.image_index,
        "format": picture.format,
        "width_px": picture.width_px,
        "height_px": picture.height_px,
        "settings": dict(picture.settings),
    }
