"""LLaVA-1.5: one CLIP view per picture, so the number of visual tokens never depends on the picture.

Reads `config.json` and the image processor's settings of a checkpoint folder in the hub's layout; refuses at load what
the serving path would get wrong. Defaults are those of transformers' CLIPVisionConfig and CLIPImageProcessor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proteus.errors import ProteusError

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
BICUBIC = 3
PROCESSORS = ("CLIPImageProcessor", "CLIPImageProcessorFast", "CLIPImageProcessorPil", "CLIPFeatureExtractor")


class UnsupportedCheckpoint(ProteusError):
    """The checkpoint folder cannot be served; the text names file, key and value. Stops the load."""

    code = "unsupported_checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeRule:
    """Steps of the image processor, in order; None leaves a step out."""

    shortest_edge_px: int | None  # keep the aspect ratio, or …
    size_px: tuple[int, int] | None  # … (height, width) exactly
    resample: int  # Pillow's filter number
    crop_px: tuple[int, int] | None  # (height, width), centred, zero-padded where the picture is smaller
    rescale_factor: float | None
    mean: tuple[float, float, float] | None
    std: tuple[float, float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaFamily:
    """Everything the serving path must know about one LLaVA checkpoint."""

    image_size_px: int
    patch_px: int
    visual_tokens: int  # of one picture, whatever its size
    feature_width: int  # of the encoder's output: hidden size x selected layers
    image_token_id: int
    resize: ResizeRule

    @classmethod
    def from_checkpoint(cls, folder: Path) -> LlavaFamily:
        """Read the folder; raises UnsupportedCheckpoint naming file, key, value and what would do."""
        config = _read(folder / "config.json")
        where = folder / "config.json"
        _expect(where, "model_type", config.get("model_type"), ("llava",))
        vision = config.get("vision_config") or {}
        _expect(
            where, "vision_config.model_type", vision.get("model_type", "clip_vision_model"), ("clip_vision_model",)
        )
        strategy = config.get("vision_feature_select_strategy", "default")
        _expect(where, "vision_feature_select_strategy", strategy, ("default", "full"))
        image_size_px = _positive(where, "vision_config.image_size", vision.get("image_size", 224))
        patch_px = _positive(where, "vision_config.patch_size", vision.get("patch_size", 32))
        layers = config.get("vision_feature_layer", -2)
        num_layers = len(layers) if isinstance(layers, list) else 1
        hidden = _positive(where, "vision_config.hidden_size", vision.get("hidden_size", 768))
        return cls(
            image_size_px=image_size_px,
            patch_px=patch_px,
            visual_tokens=(image_size_px // patch_px) ** 2 + (1 if strategy == "full" else 0),
            feature_width=hidden * num_layers,
            image_token_id=int(config.get("image_token_id", config.get("image_token_index", 32000))),
            resize=_resize_rule(folder, image_size_px),
        )


def _resize_rule(folder: Path, image_size_px: int) -> ResizeRule:
    where, settings = _processor_settings(folder)
    _expect(where, "image_processor_type", settings.get("image_processor_type", PROCESSORS[0]), PROCESSORS)
    _expect(where, "do_pad", settings.get("do_pad") or False, (False,))
    shortest_edge_px, size_px = None, None
    if settings.get("do_resize", True):
        shortest_edge_px, size_px = _size(where, settings.get("size", {"shortest_edge": 224}))
    crop_px = None
    if settings.get("do_center_crop", True):
        crop_px = _crop(where, settings.get("crop_size", 224))
    rule = ResizeRule(
        shortest_edge_px=shortest_edge_px,
        size_px=size_px,
        resample=int(settings.get("resample", BICUBIC)),
        crop_px=crop_px,
        rescale_factor=float(settings.get("rescale_factor", 1 / 255)) if settings.get("do_rescale", True) else None,
        mean=_triple(where, "image_mean", settings.get("image_mean", CLIP_MEAN)) if _normalises(settings) else None,
        std=_triple(where, "image_std", settings.get("image_std", CLIP_STD)) if _normalises(settings) else None,
    )
    if (rule.crop_px or rule.size_px) != (image_size_px, image_size_px):
        raise UnsupportedCheckpoint(
            f"{where} makes pictures of {rule.crop_px or rule.size_px or 'any size'} px",
            limit=f"vision_config.image_size = {image_size_px}",
            fix="use a fixed square size or a centre crop of the encoder's size",
        )
    return rule


def _processor_settings(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """The image processor's own file, or its part of the processor's file, where newer checkpoints keep it."""
    own = folder / "preprocessor_config.json"
    if own.exists():
        return own, _read(own)
    shared = folder / "processor_config.json"
    settings = _read(shared).get("image_processor") if shared.exists() else None
    if not isinstance(settings, dict):
        raise UnsupportedCheckpoint(f"{own} is missing", fix="add the checkpoint's preprocessor_config.json")
    return shared, settings


def _normalises(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("do_normalize", True))


def _size(where: Path, size: object) -> tuple[int | None, tuple[int, int] | None]:
    if isinstance(size, int):
        return _positive(where, "size", size), None
    if isinstance(size, dict):
        named = {key: value for key, value in size.items() if value is not None}
        if set(named) == {"shortest_edge"}:
            return _positive(where, "size.shortest_edge", named["shortest_edge"]), None
        if set(named) == {"height", "width"}:
            sides = (_positive(where, f"size.{side}", named[side]) for side in ("height", "width"))
            return None, (next(sides), next(sides))
    raise UnsupportedCheckpoint(f"{where}: size = {size!r}", limit="shortest_edge, or height and width")


def _crop(where: Path, size: object) -> tuple[int, int]:
    if isinstance(size, int):
        return _positive(where, "crop_size", size), size
    if isinstance(size, dict) and {key for key, value in size.items() if value is not None} == {"height", "width"}:
        return _positive(where, "crop_size.height", size["height"]), _positive(where, "crop_size.width", size["width"])
    raise UnsupportedCheckpoint(f"{where}: crop_size = {size!r}", limit="height and width")


def _triple(where: Path, key: str, values: object) -> tuple[float, float, float]:
    if not isinstance(values, (list, tuple)) or len(values) != 3:
        raise UnsupportedCheckpoint(f"{where}: {key} = {values!r}", limit="three numbers")
    red, green, blue = (float(value) for value in values)
    return red, green, blue


def _positive(where: Path, key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UnsupportedCheckpoint(f"{where}: {key} = {value!r}", limit="a whole number above 0")
    return value


def _expect(where: Path, key: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        raise UnsupportedCheckpoint(
            f"{where}: {key} = {value!r}",
            limit=f"known are {', '.join(map(str, known))}",
            fix="use a LLaVA-1.5 checkpoint",
        )


def _read(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise UnsupportedCheckpoint(
            f"{path} cannot be read ({error.strerror})", fix="give a checkpoint folder"
        ) from error
    except ValueError as error:
        raise UnsupportedCheckpoint(f"{path} is not JSON", fix="download the file again") from error
    if not isinstance(document, dict):
        raise UnsupportedCheckpoint(f"{path} holds no JSON object", fix="download the file again")
    return document
