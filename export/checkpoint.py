"""A checkpoint folder in the LLaVA layout of the Hugging Face hub: checked before anything slow, then loaded.

Only this folder is read: no download, no code of the checkpoint's own, no pickle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import LlavaForConditionalGeneration

from proteus.families.llava import LlavaFamily, UnsupportedCheckpoint

WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
TEXT_MODELS = ("llama", "mistral", "qwen2", "qwen3")
# Others change their angles with the length of the prompt, which a traced graph cannot.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
# Buffers that older files carry and no version of the model reads from them.
_OLD_BUFFERS = ("position_ids", "rotary_emb.inv_freq")
_TEXT_SUFFIXES = (".json", ".jinja")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A folder that passed every check that needs no weights."""

    folder: Path
    family: LlavaFamily
    context_tokens: int
    weight_files: tuple[Path, ...]

    def revision(self) -> str:
        """SHA-256, hex, over the names and bytes of config and weights."""
        digest = hashlib.sha256()
        for path in (self.folder / "config.json", *self.weight_files):
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256")
            digest.update(f"{path.name} {content.hexdigest()}\n".encode())
        return digest.hexdigest()

    def text_files(self) -> list[Path]:
        """Configs, tokenizer and template: what serving reads; no weights."""
        files = (path for path in self.folder.iterdir() if path.suffix in _TEXT_SUFFIXES)
        return sorted(path for path in files if not path.name.endswith(".index.json"))


def read_checkpoint(folder: Path) -> Checkpoint:
    """Check the folder; raises UnsupportedCheckpoint naming file, value, what is known and what to do."""
    if not folder.is_dir():
        raise UnsupportedCheckpoint(f"{folder} is no folder", fix="give the folder of a checkpoint")
    family = LlavaFamily.from_checkpoint(folder)
    config = _read(folder / "config.json")
    _check_layers(folder, config)
    context_tokens = _check_text_model(folder, config.get("text_config") or {})
    _check_tokenizer(folder, family.image_token_id)
    return Checkpoint(
        folder=folder, family=family, context_tokens=context_tokens, weight_files=tuple(_weight_files(folder))
    )


def load_model(checkpoint: Checkpoint) -> LlavaForConditionalGeneration:
    """The model in float32; raises UnsupportedCheckpoint when the files and the config do not fit each other."""
    try:
        model, report = LlavaForConditionalGeneration.from_pretrained(
            checkpoint.folder,
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told below, by name
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise UnsupportedCheckpoint(
            f"transformers cannot load {checkpoint.folder} ({str(error).splitlines()[0]})", fix="download it again"
        ) from error
    unread = [key for key in report["unexpected_keys"] if not key.endswith(_OLD_BUFFERS)]
    wrong = [key for key, *_ in report["mismatched_keys"]]
    for what, keys in (("lacks", report["missing_keys"]), ("has unknown", unread), ("has wrong sizes of", wrong)):
        if keys:
            names = ", ".join(sorted(keys)[:3])
            raise UnsupportedCheckpoint(
                f"{checkpoint.folder} {what} {len(keys)} weights: {names}{', …' if len(keys) > 3 else ''}",
                fix="use a checkpoint in the hub's LLaVA layout whose weights belong to its config.json",
            )
    return model.eval()


def eos_token_ids(model: LlavaForConditionalGeneration) -> list[int]:
    """The ids at which transformers' generate stops."""
    ids = model.generation_config.eos_token_id
    if ids is None:
        ids = model.config.text_config.eos_token_id
    return [ids] if isinstance(ids, int) else list(ids or [])


def _check_layers(folder: Path, config: Mapping[str, Any]) -> None:
    num_layers = (config.get("vision_config") or {}).get("num_hidden_layers", 24)
    selected = config.get("vision_feature_layer", -2)
    for layer in selected if isinstance(selected, list) else [selected]:
        if not isinstance(layer, int) or not -num_layers - 1 <= layer <= num_layers:
            raise UnsupportedCheckpoint(
                f"{folder / 'config.json'}: vision_feature_layer = {layer!r}",
                limit=f"{-num_layers - 1} to {num_layers} (0 is before the first layer)",
            )


def _check_text_model(folder: Path, text: Mapping[str, Any]) -> int:
    where = folder / "config.json"
    kind = text.get("model_type", "llama")
    if kind not in TEXT_MODELS:
        raise UnsupportedCheckpoint(
            f"{where}: text_config.model_type = {kind!r}", limit=f"known are {', '.join(TEXT_MODELS)}"
        )
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in ROPE_TYPES:
        raise UnsupportedCheckpoint(f"{where}: rope_type = {rope_type!r}", limit=f"known are {', '.join(ROPE_TYPES)}")
    return int(text.get("max_position_embeddings", 2048))


def _check_tokenizer(folder: Path, image_token_id: int) -> None:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UnsupportedCheckpoint(
            f"{path} is missing",
            fix="write it with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
        )
    try:
        token = Tokenizer.from_file(str(path)).id_to_token(image_token_id)
    except Exception as error:  # the Rust side raises bare Exception
        raise UnsupportedCheckpoint(f"{path} is no tokenizer", fix="download the file again") from error
    if token is None:
        raise UnsupportedCheckpoint(
            f"{path} has no token {image_token_id}, the image placeholder of config.json",
            fix="add the placeholder to the tokenizer and save it again",
        )
    if not _has_template(folder):
        raise UnsupportedCheckpoint(
            f"{folder} has no chat template", fix="add chat_template.jinja: serving renders conversations with it"
        )


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    path = folder / "tokenizer_config.json"
    return path.is_file() and bool(_read(path).get("chat_template"))


def _weight_files(folder: Path) -> list[Path]:
    index = folder / WEIGHTS_INDEX
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not index.is_file():
        pickled = sorted(path.name for suffix in ("*.bin", "*.pt", "*.pth") for path in folder.glob(suffix))
        raise UnsupportedCheckpoint(
            f"{folder} has no {WEIGHTS}" + (f", only {', '.join(pickled)}" if pickled else ""),
            limit="safetensors only: other weight files can run code when they are read",
            fix="convert the weights to safetensors, or download those of the same name from the hub",
        )
    names = sorted(set(_read(index).get("weight_map", {}).values()))
    missing = [name for name in names if not (folder / name).is_file() or Path(name).name != name]
    if missing or not names:
        raise UnsupportedCheckpoint(
            f"{index} names files that are not there: {', '.join(missing) or 'none at all'}", fix="download them again"
        )
    return [folder / name for name in names]


def _read(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UnsupportedCheckpoint(f"{path} cannot be read as JSON", fix="download the file again") from error
    if not isinstance(document, dict):
        raise UnsupportedCheckpoint(f"{path} holds no JSON object", fix="download the file again")
    return document
