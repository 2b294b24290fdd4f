"""What a model.py learns from Triton's `args` when it starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from proteus.deployment import Deployment


def load_deployment(args: Mapping[str, str]) -> Deployment:
    """The deployment that the model's config.pbtxt names, relative to the model repository."""
    parameters = json.loads(args["model_config"])["parameters"]
    repository = Path(args["model_repository"]).parent
    return Deployment.load(repository / parameters["deployment"]["string_value"])


def version_folder(args: Mapping[str, str]) -> Path:
    """Where the model's own files are."""
    return Path(args["model_repository"]) / args["model_version"]
