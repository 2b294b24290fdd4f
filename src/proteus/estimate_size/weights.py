"""How many parameters the parts of a checkpoint have: from the headers of its safetensors files, or from config.json.

No tensor is read. A part that neither tells is unknown, never guessed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from proteus.families.checkpoint import ConfigTable, UnsupportedCheckpoint, read_config
from proteus.families.language_model import read_language_model

Part = Literal["vision_encoder", "connector", "language", "text_encoder", "denoiser", "vae_decoder"]
Basis = Literal["exact", "config"]
MAX_HEADER_BYTES = 100 << 20
BYTES_OF = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "I32": 4, "I64": 8}
VISION = ("vision_tower", "vision_model", "visual.", "vision_encoder", "audio_tower", "image_newline")
CONNECTOR = ("multi_modal_projector", "mm_projector", "connector", "mlp1.", "embed_vision")
TABLES = ("embed_tokens.", "lm_head.", "wte.", "word_embeddings.")
# Language models with MLPs of gate, up and down: transformers' defaults of intermediate_size and vocab_size.
GATED = {
    "llama": (11008, 32000),
    "mistral": (14336, 32000),
    "ministral": (14336, 32000),
    "qwen2": (22016, 151936),
    "qwen2_vl_text": (29568, 152064),
    "qwen2_5_vl_text": (29568, 152064),
}
BIASED = ("qwen2", "qwen2_vl_text", "qwen2_5_vl_text")  # queries, keys and values


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Parameters of one part. `stored_bytes`: of one of them in the checkpoint. `tables`: of embedding and head."""

    parameters: int
    stored_bytes: int
    basis: Basis
    tables: int = 0


def read_weights(folder: Path) -> dict[Part, Weights]:
    """Of a checkpoint in the hub's layout that reads pictures; raises UnsupportedCheckpoint."""
    files = sorted(folder.glob("*.safetensors"))
    return _summed(files, _part_of) if files else dict(_from_config(read_config(folder)))


def read_draw_weights(folder: Path) -> dict[Part, Weights]:
    """Of a checkpoint in the diffusers layout; a folder without weights leaves its part out."""
    parts: dict[Part, list[Path]] = {
        "text_encoder": sorted(folder.glob("text_encoder*/*.safetensors")),
        "denoiser": [*sorted(folder.glob("unet/*.safetensors")), *sorted(folder.glob("transformer/*.safetensors"))],
        "vae_decoder": sorted(folder.glob("vae/*.safetensors")),
    }
    return {part: weights for part, files in parts.items() for weights in _summed(files, _decoding(part)).values()}


def _decoding(part: Part) -> Callable[[str], Part | None]:
    """Of a VAE only what decodes is served."""
    encodes = ("encoder.", "quant_conv") if part == "vae_decoder" else ()
    return lambda name: None if name.startswith(encodes) else part


def _summed(files: list[Path], part_of: Callable[[str], Part | None]) -> dict[Part, Weights]:
    parameters: dict[Part, int] = {}
    stored: dict[Part, int] = {}
    tables: dict[Part, int] = {}
    for file in files:
        for name, tensor in _tensors(file):
            part = part_of(name)
            if part is None:
                continue
            count = math.prod(tensor["shape"])
            parameters[part] = parameters.get(part, 0) + count
            stored[part] = stored.get(part, 0) + count * BYTES_OF.get(tensor["dtype"], 4)
            tables[part] = tables.get(part, 0) + (count if any(word in name for word in TABLES) else 0)
    return {
        part: Weights(parameters=count, stored_bytes=round(stored[part] / count), basis="exact", tables=tables[part])
        for part, count in parameters.items()
        if count
    }


def _part_of(name: str) -> Part:
    if any(word in name for word in CONNECTOR):
        return "connector"
    return "vision_encoder" if any(word in name for word in VISION) else "language"


def _tensors(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Name, and dtype and shape, of every tensor: eight bytes of length, then so many of JSON."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length <= MAX_HEADER_BYTES:
            raise _damaged(file)
        try:
            header = json.loads(stream.read(length))
            entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
            yield from ((name, {"dtype": entry["dtype"], "shape": list(entry["shape"])}) for name, entry in entries)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(file) from error


def _damaged(file: Path) -> UnsupportedCheckpoint:
    return UnsupportedCheckpoint(
        f"{file} has no header of safetensors", limit=f"{MAX_HEADER_BYTES:,} bytes of JSON", fix="fetch the file again"
    )


def _from_config(config: ConfigTable) -> Iterator[tuple[Part, Weights]]:
    """LLaMA's kind of language model, and CLIP's kind of tower with LLaVA's projector; nothing of other kinds."""
    text, vision = config.table("text_config"), config.table("vision_config")
    dtypes = [table.get("dtype", table.get("torch_dtype")) for table in (config, text)]
    stored = 4 if "float32" in dtypes else 2
    if (kind := text.get("model_type", "llama")) in GATED:
        count, tables = _gated(text, kind)
        yield "language", Weights(parameters=count, stored_bytes=stored, basis="config", tables=tables)
    if config.get("model_type") == "llava" and vision.get("model_type", "clip_vision_model") == "clip_vision_model":
        width, out = vision.positive("hidden_size", 1024), text.positive("hidden_size", 4096)
        layers = config.get("vision_feature_layer", -2)
        features = width * (len(layers) if isinstance(layers, list) else 1)
        projector = (features + 1) * out + (out + 1) * out
        yield "vision_encoder", Weights(parameters=_clip(vision, width), stored_bytes=stored, basis="config")
        yield "connector", Weights(parameters=projector, stored_bytes=stored, basis="config")


def _gated(text: ConfigTable, kind: str) -> tuple[int, int]:
    """Embedding, attention, MLP and norms of each layer, last norm, and the head where it is not tied; tables alone."""
    model, (intermediate, vocabulary) = read_language_model(text, kind), GATED[kind]
    hidden = model.hidden_size
    queries, values = text.positive("num_attention_heads", 32) * model.head_dim, model.kv_heads * model.head_dim
    attention = 2 * hidden * queries + 2 * hidden * values + (queries + 2 * values if kind in BIASED else 0)
    layer = attention + 3 * hidden * text.positive("intermediate_size", intermediate) + 2 * hidden
    copies = 1 if text.flag("tie_word_embeddings", False) else 2
    tables = copies * text.positive("vocab_size", vocabulary) * hidden
    return tables + model.layers * layer + hidden, tables


def _clip(vision: ConfigTable, width: int) -> int:
    """Patches, class token, positions, two norms, and per layer attention, MLP and two norms, all with biases."""
    patch = vision.positive("patch_size", 14)
    positions = (vision.positive("image_size", 336) // patch) ** 2 + 1
    mlp = vision.positive("intermediate_size", 4 * width)
    layer = 4 * (width + 1) * width + (width + 1) * mlp + (mlp + 1) * width + 4 * width
    return (
        3 * patch**2 * width + width + positions * width + 4 * width + vision.positive("num_hidden_layers", 24) * layer
    )
