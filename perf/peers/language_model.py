"""The language model of a LLaVA checkpoint as a folder of its own, for engines that know nothing of pictures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

PREFIX = "language_model."
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
ARCHITECTURES = {"llama": "LlamaForCausalLM"}


def carve(checkpoint: Path, out: Path) -> Path:
    """Writes the folder anew and returns it: config, weights under the names of the model alone, tokenizer."""
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
    text = config["text_config"]
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    weights = {
        name.removeprefix(PREFIX): tensor
        for file in sorted(checkpoint.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
        if name.startswith(PREFIX)
    }
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    alone = {**text, "architectures": [ARCHITECTURES[text["model_type"]]], "dtype": "float32"}
    # Readers of before transformers 5 look for the base of the rotation here.
    alone["rope_theta"] = text["rope_parameters"]["rope_theta"]
    (out / "config.json").write_text(json.dumps(alone, indent=2) + "\n")
    for name in TOKENIZER_FILES:
        if (checkpoint / name).exists():
            shutil.copy(checkpoint / name, out / name)
    return out
