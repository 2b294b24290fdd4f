"""Each graph of a text-to-image checkpoint against diffusers, on batches and sizes other than those it was traced with.

The last case runs diffusers' own pipeline twice, once over torch and once over the files, and compares the latents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn

from export.diffusion_checkpoint import Parts
from export.diffusion_graphs import CACHE_KEY_BYTES, DrawShape
from export.parity import Comparison, ParityError, compare, open_session
from proteus.families.checkpoint import UnsupportedCheckpoint

PROMPTS = ("a red circle", "", "Two blue squares, a GREEN triangle & 37 zebras — naïve!")
STEPS, GUIDANCE = 3, 2.5
_SAVE_AGAIN = "save the tokenizer again: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
PIXELS_OFF = 0.005  # of the values may be one off: a float on either side of a half

Floats = NDArray[np.float32]


def check_tokenizers(parts: Parts, shape: DrawShape, folder: Path) -> None:
    """`tokenizer.json` alone gives the ids that diffusers' pipeline gives; raises UnsupportedCheckpoint."""
    for text, tokens, slow in zip(parts.checkpoint.texts, shape.input_tokens, parts.tokenizers, strict=True):
        path = folder / text.tokenizer / "tokenizer.json"
        if not path.is_file():
            raise UnsupportedCheckpoint(f"{path} is missing", fix=_SAVE_AGAIN)
        fast = Tokenizer.from_file(str(path))
        fast.no_padding()
        fast.no_truncation()
        for prompt in PROMPTS:
            want = _padded(slow, [prompt], tokens)[0].tolist()
            got = fast.encode(prompt).ids
            if len(got) <= tokens and got + [slow.pad_token_id] * (tokens - len(got)) != want:
                raise UnsupportedCheckpoint(f"{path} gives other ids than transformers for {prompt!r}", fix=_SAVE_AGAIN)


def check_text_encoder(path: Path, parts: Parts, shape: DrawShape) -> Iterator[Comparison]:
    session = open_session(path)
    for prompts in (PROMPTS[:1], PROMPTS):
        case = f"batch {len(prompts)}"
        want, want_pooled = reference_text(parts, shape, prompts)
        key = np.random.default_rng(0).integers(0, 256, (len(prompts), CACHE_KEY_BYTES), dtype=np.uint8)
        outputs = run_text_encoder(session, parts, shape, prompts, key)
        yield compare("text_encoder", case, outputs["text_states"], want)
        if want_pooled is not None:
            yield compare("text_encoder", f"{case}, pooled", outputs["pooled"], want_pooled)
        if not np.array_equal(outputs["cache_key_echo"], key):
            raise ParityError(f"text_encoder, {case}: cache_key_echo is not cache_key")


def run_text_encoder(
    session: ort.InferenceSession,
    parts: Parts,
    shape: DrawShape,
    prompts: Sequence[str],
    key: NDArray[np.uint8] | None = None,
) -> dict[str, Any]:
    feed: dict[str, Any] = {
        text.tensor: _padded(tokenizer, prompts, tokens).numpy()
        for text, tokens, tokenizer in zip(parts.checkpoint.texts, shape.input_tokens, parts.tokenizers, strict=True)
    }
    feed["cache_key"] = np.zeros((len(prompts), CACHE_KEY_BYTES), np.uint8) if key is None else key
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


@torch.no_grad()
def reference_text(parts: Parts, shape: DrawShape, prompts: Sequence[str]) -> tuple[Floats, Floats | None]:
    """Text states (B, T, E) and pooled text (B, P) of diffusers' pipeline."""
    pipeline, given = parts.pipeline(), list(prompts)
    match parts.checkpoint.kind.family:
        case "unet":
            states, _ = pipeline.encode_prompt(given, "cpu", 1, False)
            return states.numpy(), None
        case "sd3":
            states, _, pooled, _ = pipeline.encode_prompt(
                given, None, None, do_classifier_free_guidance=False, max_sequence_length=_t5_tokens(parts, shape)
            )
        case "flux":
            states, pooled, _ = pipeline.encode_prompt(given, None, max_sequence_length=_t5_tokens(parts, shape))
    return states.numpy(), pooled.numpy()


def _t5_tokens(parts: Parts, shape: DrawShape) -> int:
    """Of the last text of a kind, whether the checkpoint has it or zeros in its place."""
    last = parts.checkpoint.kind.texts[-1]
    there = parts.checkpoint.texts[-1] is last
    return shape.input_tokens[-1] if there else last.most_tokens or 0


def check_denoiser(path: Path, parts: Parts, shape: DrawShape) -> Iterator[Comparison]:
    """Every row has a timestep of its own."""
    session = open_session(path)
    multiple = shape.size_multiple
    for rows, height, width in (
        (1, 4 * multiple, 4 * multiple),
        (2, 2 * multiple, 5 * multiple),
        (5, multiple, multiple),
    ):
        feed = denoiser_feed(shape, rows, height, width)
        (got,) = session.run(None, feed)
        yield compare("denoiser", f"{rows} rows of {width}x{height}", got, reference_prediction(parts, feed))


def denoiser_feed(shape: DrawShape, rows: int, height: int, width: int, *, seed: int = 0) -> dict[str, Floats]:
    """Random inputs of one call."""
    rng = np.random.default_rng((seed, rows, height, width))

    def normal(*dims: int) -> Floats:
        return rng.standard_normal(dims).astype(np.float32)

    feed = {
        "latents": normal(rows, shape.latent_channels, height, width),
        "timestep": np.linspace(999.0, 1.5, rows).astype(np.float32),
        "text_states": normal(rows, shape.text_tokens, shape.text_width),
    }
    if shape.pooled_width:
        feed["pooled"] = normal(rows, shape.pooled_width)
    if shape.embedded_guidance:
        feed["guidance"] = np.linspace(1.0, 5.0, rows).astype(np.float32)
    return feed


@torch.no_grad()
def reference_prediction(parts: Parts, feed: dict[str, Floats]) -> Floats:
    """What diffusers' module answers, called as its pipeline calls it."""
    given = {name: torch.from_numpy(value) for name, value in feed.items()}
    latents, timestep, states = given["latents"], given["timestep"], given["text_states"]
    match parts.checkpoint.kind.family:
        case "unet":
            return parts.denoiser(latents, timestep, states).sample.numpy()
        case "sd3":
            return parts.denoiser(latents, states, given["pooled"], timestep).sample.numpy()
        case "flux":
            from diffusers import FluxPipeline

            rows, channels, height, width = latents.shape
            packed = parts.denoiser(
                FluxPipeline._pack_latents(latents, rows, channels, height, width),
                encoder_hidden_states=states,
                pooled_projections=given["pooled"],
                timestep=timestep / 1000,
                img_ids=FluxPipeline._prepare_latent_image_ids(rows, height // 2, width // 2, "cpu", torch.float32),
                txt_ids=torch.zeros(states.shape[1], 3),
                guidance=given.get("guidance"),
            ).sample
            return FluxPipeline._unpack_latents(packed, height, width, 1).numpy()
    raise RuntimeError(parts.checkpoint.kind.family)


def check_vae_decoder(path: Path, parts: Parts, shape: DrawShape) -> Iterator[Comparison]:
    session = open_session(path)
    for batch, height, width in ((1, 8, 8), (3, 4, 6)):
        latents = denoiser_feed(shape, batch, height, width, seed=1)["latents"]
        (got,) = session.run(None, {"latents": latents})
        yield compare_pixels(f"{batch} of {width}x{height}", got, reference_pixels(parts, latents))


@torch.no_grad()
def reference_pixels(parts: Parts, latents: Floats) -> NDArray[np.uint8]:
    """(B, H, W, 3), as diffusers' pipeline decodes and rounds them."""
    pipeline, config = parts.pipeline(), parts.vae.config
    unscaled = torch.from_numpy(latents) / config.scaling_factor + (config.shift_factor or 0.0)
    decoded = parts.vae.decode(unscaled).sample
    pictures = pipeline.image_processor.postprocess(decoded, output_type="pil", do_denormalize=[True] * len(latents))
    return np.stack([np.asarray(picture) for picture in pictures])


def compare_pixels(case: str, got: NDArray[np.uint8], want: NDArray[np.uint8]) -> Comparison:
    """8-bit values: none more than one off, and few of those; raises ParityError."""
    if got.shape != want.shape or got.dtype != np.uint8:
        raise ParityError(f"vae_decoder, {case}: {got.dtype} {got.shape}, diffusers has uint8 {want.shape}")
    off = np.abs(got.astype(np.int16) - want)
    if off.max() > 1 or (off > 0).mean() > PIXELS_OFF:
        raise ParityError(
            f"vae_decoder, {case}: differs from diffusers by up to {off.max()}, {(off > 0).mean():.2%} of the values",
            limit=f"1, {PIXELS_OFF:.2%} of the values",
            fix="report it with the checkpoint's configs; nothing was written",
        )
    return Comparison(graph="vae_decoder", case=case, max_abs_diff=float(off.max()), scale=255.0)


def check_together(repository: Path, parts: Parts, shape: DrawShape) -> Iterator[Comparison]:
    """Prompt to latents in STEPS steps with the checkpoint's own scheduler."""
    text = open_session(repository / "text_encoder/1/model.onnx")
    height, width = 4 * shape.size_multiple, 2 * shape.size_multiple
    latents = denoiser_feed(shape, 2, height, width, seed=2)["latents"]
    size = {"height": height * shape.vae_factor, "width": width * shape.vae_factor}
    want = _draw(parts, shape, latents, {"prompt": list(PROMPTS[:2]), **size})
    states = [run_text_encoder(text, parts, shape, prompts) for prompts in (PROMPTS[:2], ("", ""))]
    embeds = {"prompt_embeds": states[0]["text_states"], "negative_prompt_embeds": states[1]["text_states"]}
    if shape.pooled_width:
        embeds |= {"pooled_prompt_embeds": states[0]["pooled"], "negative_pooled_prompt_embeds": states[1]["pooled"]}
    if parts.checkpoint.kind.family == "flux":
        embeds = {name: value for name, value in embeds.items() if "negative" not in name}
    given = {name: torch.from_numpy(value) for name, value in embeds.items()}
    denoiser = FileDenoiser(repository / "denoiser/1/denoiser.onnx", parts.denoiser, height)
    got = _draw(parts, shape, latents, {**given, **size}, denoiser)
    yield compare("all together", f"{STEPS} steps of {width}x{height}", got, want)


@torch.no_grad()
def _draw(
    parts: Parts, shape: DrawShape, latents: Floats, request: dict[str, Any], denoiser: nn.Module | None = None
) -> Floats:
    pipeline, noise, family = parts.pipeline(), torch.from_numpy(latents), parts.checkpoint.kind.family
    if denoiser is not None:
        setattr(pipeline, parts.checkpoint.kind.denoiser, denoiser)
    if family == "flux":
        noise = pipeline._pack_latents(noise, *noise.shape)
    if family != "unet":
        request = {**request, "max_sequence_length": _t5_tokens(parts, shape)}
    drawn = pipeline(
        **request, latents=noise, num_inference_steps=STEPS, guidance_scale=GUIDANCE, output_type="latent"
    ).images
    return drawn.numpy()


class FileDenoiser(nn.Module):
    """A graph in the place of a pipeline's module. `height` in latents, which packed ones do not tell."""

    def __init__(self, path: Path, stands_for: nn.Module, height: int) -> None:
        super().__init__()
        self.config, self.dtype, self.device = stands_for.config, torch.float32, torch.device("cpu")
        self._height = height
        self._session = open_session(path)

    def forward(
        self,
        sample: Tensor | None = None,
        timestep: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        pooled_projections: Tensor | None = None,
        hidden_states: Tensor | None = None,
        guidance: Tensor | None = None,
        img_ids: Tensor | None = None,
        **_: object,
    ) -> tuple[Tensor]:
        from diffusers import FluxPipeline

        latents = hidden_states if sample is None else sample
        if latents is None or timestep is None or encoder_hidden_states is None:
            raise RuntimeError("the pipeline calls its denoiser in another way")
        rows, packed = len(latents), img_ids is not None
        if packed:
            width = 4 * latents.shape[1] // self._height
            latents = FluxPipeline._unpack_latents(latents, self._height, width, 1)
        given = {
            "latents": latents,
            "timestep": (timestep * 1000 if packed else timestep).expand(rows).float(),
            "text_states": encoder_hidden_states,
            "pooled": pooled_projections,
            "guidance": guidance,
        }
        feed = {name: value.contiguous().numpy() for name, value in given.items() if value is not None}
        prediction = torch.from_numpy(self._session.run(None, feed)[0])
        return (FluxPipeline._pack_latents(prediction, *prediction.shape) if packed else prediction,)

    def cache_context(self, _: str) -> Any:
        return torch.no_grad()


CHECKS: dict[str, Callable[[Path, Parts, DrawShape], Iterator[Comparison]]] = {
    "text_encoder": check_text_encoder,
    "denoiser": check_denoiser,
    "vae_decoder": check_vae_decoder,
}


def _padded(tokenizer: Any, prompts: Sequence[str], tokens: int) -> Tensor:
    """(B, tokens), as diffusers' pipelines pad."""
    ids: Tensor = tokenizer(
        list(prompts), padding="max_length", max_length=tokens, truncation=True, return_tensors="pt"
    ).input_ids
    return ids
