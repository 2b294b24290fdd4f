"""What makes a prompt into ids and tensors, by the class of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

PROCESSORS: dict[type, type] = {}


class MultimodalPlaceholderPlacement(Enum):
    BEFORE_TEXT = "before"
    AFTER_TEXT = "after"


@dataclass(frozen=True)
class MultimodalPlaceholderMetadata:
    placeholder_map: dict[str, str]
    placeholder_placement: MultimodalPlaceholderPlacement


def register_input_processor(
    processor_cls: type, model_type: str, placeholder_metadata: MultimodalPlaceholderMetadata | None = None
) -> Callable[[Any], Any]:
    if placeholder_metadata is None:
        raise ValueError("A valid placeholder_metadata must be provided")

    def wrapper(model_cls: Any) -> Any:
        PROCESSORS[model_cls] = processor_cls
        return model_cls

    return wrapper
