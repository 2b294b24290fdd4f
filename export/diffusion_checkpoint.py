"""A text-to-image checkpoint folder in diffusers' layout: checked before anything slow, then loaded part by part.

Only this folder is read: no download, no code of the checkpoint's own, no pickle. What a pipeline draws with is
exported; what it has besides (safety_checker, feature_extractor, image_encoder) is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import diffusers
import torch
import transformers
from torch import nn

from proteus.families.checkpoint import ConfigTable, UnsupportedCheckpoint, read_table
from proteus.generation.schedule import NoiseSchedule
from proteus.manifest import Prediction

INDEX = "model_index.json"
_CLIP_TOKENIZERS, _T5_TOKENIZERS = ("CLIPTokenizer", "CLIPTokenizerFast"), ("T5TokenizerFast", "T5Tokenizer")
_VOCABULARIES = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("spiece.model",))
_VOCABULARY_NAMES = "known are tokenizer.json, vocab.json with merges.txt, spiece.model"
_STEM = "diffusion_pytorch_model"  # of the names of diffusers' weights
# Buffers that older files carry and no version of the model reads from them.
_UNREAD = ("position_ids",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """One text encoder of a kind of pipeline, with its tokenizer."""

    tensor: str
    encoder: str  # folder
    encoder_class: str
    tokenizer: str  # folder
    tokenizer_classes: tuple[str, ...]
    most_tokens: int | None = None  # that diffusers' pipeline takes, whatever the tokenizer says
    may_be_missing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A pipeline class that can be exported."""

    pipeline: str
    family: Literal["unet", "sd3", "flux"]
    denoiser: str  # folder
    denoiser_class: str
    texts: tuple[TextPart, ...]


def _clip(number: int, encoder_class: str) -> TextPart:
    suffix = "" if number == 1 else f"_{number}"
    return TextPart(
        tensor=f"input_ids{suffix}",
        encoder=f"text_encoder{suffix}",
        encoder_class=encoder_class,
        tokenizer=f"tokenizer{suffix}",
        tokenizer_classes=_CLIP_TOKENIZERS,
    )


def _t5(number: int, most_tokens: int, *, may_be_missing: bool = False) -> TextPart:
    return TextPart(
        tensor=f"input_ids_{number}",
        encoder=f"text_encoder_{number}",
        encoder_class="T5EncoderModel",
        tokenizer=f"tokenizer_{number}",
        tokenizer_classes=_T5_TOKENIZERS,
        most_tokens=most_tokens,
        may_be_missing=may_be_missing,
    )


KINDS: Mapping[str, Kind] = {
    kind.pipeline: kind
    for kind in (
        Kind(
            pipeline="StableDiffusionPipeline",
            family="unet",
            denoiser="unet",
            denoiser_class="UNet2DConditionModel",
            texts=(_clip(1, "CLIPTextModel"),),
        ),
        Kind(
            pipeline="StableDiffusion3Pipeline",
            family="sd3",
            denoiser="transformer",
            denoiser_class="SD3Transformer2DModel",
            texts=(
                _clip(1, "CLIPTextModelWithProjection"),
                _clip(2, "CLIPTextModelWithProjection"),
                _t5(3, 256, may_be_missing=True),
            ),
        ),
        Kind(
            pipeline="FluxPipeline",
            family="flux",
            denoiser="transformer",
            denoiser_class="FluxTransformer2DModel",
            texts=(_clip(1, "CLIPTextModel"), _t5(2, 512)),
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawCheckpoint:
    """A folder that passed every check that needs no weights."""

    folder: Path
    kind: Kind
    texts: tuple[TextPart, ...]  # those that are there
    left_out: tuple[str, ...]  # parts of the pipeline that are not exported
    prediction: Prediction
    scheduler: Mapping[str, Any]
    weight_files: tuple[Path, ...]

    def revision(self) -> str:
        """SHA-256, hex, over the names and bytes of all that a picture depends on."""
        configs = [self.folder / part / "config.json" for part in self._parts()]
        tokenizers = [path for text in self.texts for path in _files(self.folder / text.tokenizer)]
        digest = hashlib.sha256()
        for path in (self.folder / "scheduler/scheduler_config.json", *configs, *tokenizers, *self.weight_files):
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256")
            digest.update(f"{path.relative_to(self.folder)} {content.hexdigest()}\n".encode())
        return digest.hexdigest()

    def text_files(self) -> list[Path]:
        """Configs and tokenizers, relative to the folder: what serving and people read; no weights."""
        parts = (*self._parts(), "scheduler", *(text.tokenizer for text in self.texts))
        files = [path for part in parts for path in _files(self.folder / part)]
        texts = [path for path in files if path.suffix in (".json", ".txt", ".model")]
        return sorted(
            path.relative_to(self.folder)
            for path in (self.folder / INDEX, *texts)
            if not path.name.endswith(".index.json")
        )

    def _parts(self) -> tuple[str, ...]:
        return (*(text.encoder for text in self.texts), self.kind.denoiser, "vae")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A loaded checkpoint, float32."""

    checkpoint: DrawCheckpoint
    encoders: tuple[nn.Module, ...]  # as checkpoint.texts
    tokenizers: tuple[Any, ...]
    denoiser: nn.Module
    vae: nn.Module

    def pipeline(self) -> Any:
        """diffusers' own, over the same modules."""
        kind = self.checkpoint.kind
        known: dict[str, Any] = {kind.denoiser: self.denoiser, "vae": self.vae}
        for text in kind.texts:
            known |= {text.encoder: None, text.tokenizer: None}
        for text, encoder, tokenizer in zip(self.checkpoint.texts, self.encoders, self.tokenizers, strict=True):
            known |= {text.encoder: encoder, text.tokenizer: tokenizer}
        name = self.checkpoint.scheduler["_class_name"]
        known["scheduler"] = getattr(diffusers, name).from_config(dict(self.checkpoint.scheduler))
        if kind.family == "unet":
            known |= {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
        pipeline = getattr(diffusers, kind.pipeline)(**known)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline


def is_draw_checkpoint(folder: Path) -> bool:
    """Whether the folder is in diffusers' layout."""
    return (folder / INDEX).is_file()


def read_draw_checkpoint(folder: Path) -> DrawCheckpoint:
    """Check the folder; raises UnsupportedCheckpoint naming file, key, value, what is known and what to do."""
    index = read_table(folder / INDEX)
    kind = KINDS[index.one_of("_class_name", tuple(KINDS))]
    texts = tuple(text for text in kind.texts if not (text.may_be_missing and _is_null(index, text.encoder)))
    for text in texts:
        _check_class(index, text.encoder, (text.encoder_class,))
        _check_class(index, text.tokenizer, text.tokenizer_classes)
    _check_class(index, kind.denoiser, (kind.denoiser_class,))
    _check_class(index, "vae", ("AutoencoderKL",))
    exported = {kind.denoiser, "vae", "scheduler", *(name for text in texts for name in (text.encoder, text.tokenizer))}
    scheduler = read_table(folder / "scheduler/scheduler_config.json")
    prediction = _prediction(scheduler)
    if kind.family != "unet" and prediction != "flow":
        raise scheduler.wrong("_class_name", scheduler.get("_class_name"), f"a flow schedule, with {kind.pipeline}")
    NoiseSchedule.from_config(scheduler.values, prediction, kind.family)
    vae = read_table(folder / "vae/config.json")
    _check_vae(vae)
    denoiser = read_table(folder / kind.denoiser / "config.json")
    _DENOISER_CHECKS[kind.family](denoiser, vae.positive("latent_channels", 4))
    stems = dict.fromkeys((text.encoder for text in texts), "model") | dict.fromkeys((kind.denoiser, "vae"), _STEM)
    return DrawCheckpoint(
        folder=folder,
        kind=kind,
        texts=texts,
        left_out=tuple(name for name in index.values if name[:1] != "_" and name not in exported and _has(index, name)),
        prediction=prediction,
        scheduler=scheduler.values,
        weight_files=tuple(path for part, stem in stems.items() for path in _weight_files(folder / part, stem)),
    )


def load_parts(checkpoint: DrawCheckpoint) -> Parts:
    """The modules; raises UnsupportedCheckpoint when files and configs do not fit each other."""
    folder, kind = checkpoint.folder, checkpoint.kind
    encoders = tuple(
        _load(getattr(transformers, text.encoder_class), folder / text.encoder) for text in checkpoint.texts
    )
    tokenizers = tuple(_load_tokenizer(text, folder) for text in checkpoint.texts)
    return Parts(
        checkpoint=checkpoint,
        encoders=encoders,
        tokenizers=tokenizers,
        denoiser=_load(getattr(diffusers, kind.denoiser_class), folder / kind.denoiser),
        vae=_load(diffusers.AutoencoderKL, folder / "vae"),
    )


def _load(kind: Any, folder: Path) -> nn.Module:
    settings = {"dtype" if hasattr(transformers, kind.__name__) else "torch_dtype": torch.float32}
    try:
        model, report = kind.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, output_loading_info=True, **settings
        )
    except Exception as error:  # whatever a config leads the libraries to: ZeroDivisionError, AttributeError, …
        raise UnsupportedCheckpoint(
            f"{folder} cannot be loaded ({' '.join(str(error).split())[:200]})",
            fix="use a folder whose weights belong to its config.json",
        ) from error
    unread = [key for key in report["unexpected_keys"] if not key.endswith(_UNREAD)]
    wrong = [key for key, *_ in report["mismatched_keys"]]
    for what, keys in (("lacks", report["missing_keys"]), ("has unknown", unread), ("has wrong sizes of", wrong)):
        if keys:
            names = ", ".join(sorted(keys)[:3])
            raise UnsupportedCheckpoint(
                f"{folder} {what} {len(keys)} weights: {names}{', …' if len(keys) > 3 else ''}",
                fix="use a folder whose weights belong to its config.json",
            )
    return model.eval().requires_grad_(False)


def _load_tokenizer(text: TextPart, folder: Path) -> Any:
    path = folder / text.tokenizer
    if not any(
        all((path / name).is_file() for name in names) for names in _VOCABULARIES
    ):  # or transformers makes one up
        raise UnsupportedCheckpoint(
            f"{path} has no vocabulary", limit=_VOCABULARY_NAMES, fix="download the folder again"
        )
    try:
        tokenizer = getattr(transformers, text.tokenizer_classes[0]).from_pretrained(path, local_files_only=True)
    except Exception as error:  # the Rust side raises bare Exception
        raise UnsupportedCheckpoint(f"{path} is no tokenizer ({error})", fix="download the folder again") from error
    if tokenizer.padding_side != "right" or tokenizer.pad_token_id is None:
        raise UnsupportedCheckpoint(
            f"{path}: padding_side = {tokenizer.padding_side!r}, pad_token = {tokenizer.pad_token!r}",
            limit="padding to the right",
            fix="use a folder as diffusers published it",
        )
    return tokenizer


def _prediction(scheduler: ConfigTable) -> Prediction:
    if str(scheduler.get("_class_name", "")).startswith("FlowMatch"):
        return "flow"
    named = scheduler.one_of(
        "prediction_type", ("epsilon", "v_prediction", "sample", "flow_prediction"), default="epsilon"
    )
    return "flow" if named == "flow_prediction" else named


def _check_vae(vae: ConfigTable) -> None:
    if vae.positive("in_channels", 3) != 3 or vae.positive("out_channels", 3) != 3:
        raise vae.wrong("out_channels", vae.get("out_channels"), "3: red, green and blue")
    for key in ("latents_mean", "latents_std"):
        if key in vae:
            raise vae.wrong(key, vae.get(key), "null: latents are scaled by scaling_factor and shift_factor alone")
    if vae.number("scaling_factor", 0.18215) == 0:
        raise vae.wrong("scaling_factor", 0, "another number than 0")


def _check_unet(unet: ConfigTable, latent_channels: int) -> None:
    for key in ("in_channels", "out_channels"):
        if unet.get(key, 4) != latent_channels:
            raise unet.wrong(key, unet.get(key), f"{latent_channels}, the vae's latent_channels: text to image only")
    for key in ("addition_embed_type", "class_embed_type", "encoder_hid_dim_type", "time_cond_proj_dim"):
        if key in unet:
            raise unet.wrong(key, unet.get(key), "null: the denoiser reads latents, timestep and text, nothing else")
    unet.positive("cross_attention_dim", 1280)


def _check_sd3(transformer: ConfigTable, latent_channels: int) -> None:
    for key in ("in_channels", "out_channels"):
        if transformer.get(key, 16) != latent_channels:
            raise transformer.wrong(key, transformer.get(key), f"{latent_channels}, the vae's latent_channels")


def _check_flux(transformer: ConfigTable, latent_channels: int) -> None:
    wanted = 4 * latent_channels  # each token is 2 x 2 latents
    if transformer.get("in_channels", 64) != wanted or transformer.get("out_channels") not in (None, wanted):
        raise transformer.wrong("in_channels", transformer.get("in_channels"), f"{wanted}, 4 of the vae's latents")
    transformer.one_of("patch_size", (1,), 1)


_DENOISER_CHECKS = {"unet": _check_unet, "sd3": _check_sd3, "flux": _check_flux}


def _check_class(index: ConfigTable, part: str, known: tuple[str, ...]) -> None:
    entry = index.get(part)
    name = entry[1] if isinstance(entry, list) and len(entry) == 2 else entry
    if name not in known:
        raise index.wrong(part, entry, f"known are {', '.join(known)}")


def _is_null(index: ConfigTable, part: str) -> bool:
    return not _has(index, part)


def _has(index: ConfigTable, part: str) -> bool:
    entry = index.get(part)
    return isinstance(entry, list) and len(entry) == 2 and entry[1] is not None


def _files(folder: Path) -> list[Path]:
    """Without folders, pipes and the like."""
    return sorted(path for path in folder.iterdir() if path.is_file())


def _weight_files(folder: Path, stem: str) -> tuple[Path, ...]:
    """The files that the folder is loaded from, and no others."""
    whole, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
    if whole.is_file() and index.is_file():
        raise UnsupportedCheckpoint(
            f"{folder} has its weights twice: {whole.name} and {index.name}", fix="remove one of them"
        )
    if index.is_file():
        return _shards(folder, read_table(index))
    if whole.is_file():
        return (whole,)
    there = sorted(path.name for path in folder.glob("*") if path.suffix in (".safetensors", ".bin", ".pt", ".ckpt"))
    raise UnsupportedCheckpoint(
        f"{folder} has no {whole.name}" + (f", only {', '.join(there)}" if there else ""),
        limit="safetensors of this name only: other weight files can run code when they are read",
        fix="download the safetensors, or save the pipeline again with diffusers' save_pretrained",
    )


def _shards(folder: Path, index: ConfigTable) -> tuple[Path, ...]:
    names = list(index.table("weight_map").values.values())
    wrong = [name for name in names if not isinstance(name, str) or Path(name).name != name]
    if wrong or not names:
        raise index.wrong("weight_map", wrong[0] if wrong else {}, "names of files beside it")
    missing = sorted({name for name in names if not (folder / name).is_file()})
    if missing:
        raise UnsupportedCheckpoint(
            f"{index.name} names files that are not there: {', '.join(missing)}", fix="download them again"
        )
    return tuple(folder / name for name in sorted(set(names)))
