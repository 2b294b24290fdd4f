"""Reads a folder of the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from safetensors.torch import load_file
from transformers import AutoConfig


class HfCheckpointLoader:
    def __init__(self, *, weight_loader: Any = None, weight_mapper: Any = None, config_loader: Any = None) -> None:
        self._given = weight_loader, weight_mapper, config_loader

    def load_config(self, checkpoint_dir: str, **kwargs: Any) -> Any:
        return SimpleNamespace(pretrained_config=AutoConfig.from_pretrained(checkpoint_dir), extra_attrs={})

    def load_weights(self, checkpoint_dir: str, **kwargs: Any) -> dict[str, Any]:
        weights: dict[str, Any] = {}
        for path in sorted(Path(checkpoint_dir).glob("*.safetensors")):
            weights |= load_file(path)
        return weights
