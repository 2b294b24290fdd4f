"""Model classes by the name of an architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MODELS: dict[str, Any] = {}


def register_auto_model(name: str) -> Callable[[Any], Any]:
    def decorator(cls: Any) -> Any:
        MODELS[name] = cls
        return cls

    return decorator
