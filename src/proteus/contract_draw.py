"""The tensors of the Triton models that draw, as `proteus.contract` has those that read.

Dims by symbol: L, L2, L3 ids that each tokenizer gives, T text tokens, E width of a text state, P width of the pooled
text, Z latent channels; -1 is free. A checkpoint has one to three tokenizers and may have no pooled text:
`text_encoder_of` and `denoiser_of` leave out what it has not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from proteus.contract import (
    CACHE_KEY,
    CACHE_KEY_ECHO,
    CHANNELS,
    COLLECT,
    INTERNAL_ERROR,
    MAILBOX,
    QUEUE_ERROR,
    REQUEST_KEY,
    STOP,
    Dims,
    ModelSpec,
    Symbol,
    TensorSpec,
    resolved,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawShapes:
    """What the symbols stand for in one export of a checkpoint that draws."""

    input_tokens: Mapping[str, int]  # L, L2, L3, by the tensor that has so many
    text_tokens: int  # T
    text_width: int  # E
    pooled_width: int  # P; 0: none
    latent_channels: int  # Z

    def resolve(self, dims: Dims) -> tuple[int, ...]:
        """Replace every symbol of `dims` by its number."""
        numbers: dict[Symbol, int] = {
            "T": self.text_tokens,
            "E": self.text_width,
            "P": self.pooled_width,
            "Z": self.latent_channels,
        }
        for spec in INPUT_IDS:
            (symbol,) = spec.dims
            if spec.name in self.input_tokens and isinstance(symbol, str):
                numbers[symbol] = self.input_tokens[spec.name]
        return resolved(dims, numbers)


INPUT_IDS = (
    TensorSpec("input_ids", "INT64", ("L",), "ids of the text, padded"),
    TensorSpec("input_ids_2", "INT64", ("L2",), "those of the second tokenizer, where there is one", optional=True),
    TensorSpec("input_ids_3", "INT64", ("L3",), "those of the third", optional=True),
)
TEXT_STATES = TensorSpec("text_states", "FP32", ("T", "E"), "what the denoiser attends to")
POOLED = TensorSpec("pooled", "FP32", ("P",), "the text as one vector, where the checkpoint has it", optional=True)
LATENTS = TensorSpec("latents", "FP32", ("Z", -1, -1), "clean latents, scaled as the denoiser's; each size is a bucket")
PIXELS = TensorSpec("pixels", "UINT8", (-1, -1, CHANNELS), "rows and columns of RGB")

TEXT_ENCODER = ModelSpec(
    name="text_encoder",
    job="Ids of a prompt to text states; a plain ONNX model, with Triton's response cache in front.",
    inputs=(*INPUT_IDS, CACHE_KEY),
    outputs=(TEXT_STATES, POOLED, CACHE_KEY_ECHO),
    errors=(QUEUE_ERROR,),
)
DENOISER = ModelSpec(
    name="denoiser",
    job="Text states and settings to a latent, step by step; pictures at different steps share each call. Decoupled.",
    inputs=(
        replace(TEXT_STATES, meaning="of the prompt", optional=True),
        TensorSpec("negative_states", "FP32", ("T", "E"), "of the negative prompt; not with guidance 1", optional=True),
        replace(POOLED, meaning="of the prompt"),
        TensorSpec("negative_pooled", "FP32", ("P",), "of the negative prompt", optional=True),
        TensorSpec(
            "settings",
            "UINT8",
            (-1,),
            "JSON: width_px, height_px, steps, guidance, sampler, seed, all needed; image_index, preview_every, "
            "max_previews_per_s",
            optional=True,
        ),
        TensorSpec(
            "scheduling",
            "UINT8",
            (-1,),
            "JSON: tenant, latency_class (`media` or `batch`), deadline_ms (from now, to begin); each may be left out",
            optional=True,
        ),
        REQUEST_KEY,
        STOP,
        MAILBOX,
        COLLECT,
    ),
    outputs=(
        TensorSpec("step", "INT32", (1,), "steps done"),
        TensorSpec(
            "latents",
            "FP32",
            ("Z", -1, -1),
            "of a preview, the estimate of the clean latent; at the end, the latent; none once cancelled",
        ),
        TensorSpec(
            "end",
            "UINT8",
            (-1,),
            "JSON: reason (`done` or `cancelled`), queue_us, denoise_us, evaluations, branches, accelerator_us; last "
            "event only",
        ),
        TensorSpec(
            "events",
            "UINT8",
            (-1,),
            "JSON: for `collect` only, `[key, {step, steps, shape, end}]` of all pictures of the mailbox, or "
            "`[key, error]`",
        ),
        TensorSpec(
            "event_latents",
            "FP32",
            (-1,),
            "for `collect` only: the latents of the events that have a `shape`, one after the other",
        ),
    ),
    errors=(
        "`invalid_request`: settings or scheduling with a value that does not fit, states of another shape",
        "`queue_full`: `[denoiser] live_images` + `max_queue` pictures are there already",
        "`deadline_exceeded`: not begun within `deadline_ms`",
        "`model_output_invalid`: the model's output is not finite; only this picture ends",
        INTERNAL_ERROR,
    ),
    batched=False,
    decoupled=True,
)
VAE_DECODER = ModelSpec(
    name="vae_decoder",
    job="Latents to pixels; a plain ONNX model. Pictures of one size share a batch.",
    inputs=(LATENTS,),
    outputs=(PIXELS,),
    errors=(QUEUE_ERROR,),
)
DRAW = ModelSpec(
    name="draw",
    job="The door: a prompt to pictures; one response per preview and picture, decoupled.",
    inputs=(
        TensorSpec("request", "STRING", (1,), "the request document, JSON (below), or a document that stops a request"),
    ),
    outputs=(
        TensorSpec("event", "STRING", (1,), "JSON: a preview or a picture (below); with `image`"),
        TensorSpec("image", "UINT8", (-1,), "the encoded preview or picture"),
        TensorSpec("report", "STRING", (1,), "JSON: finish_reason, usage, stages_ms, images; last response only"),
    ),
    errors=(
        "`invalid_request`: the document, a field, a size, a parameter; the text names it, its limit and the fix",
        "`prompt_too_long`: prompt or negative prompt have more tokens than the checkpoint reads; none is cut off",
        "`media_too_large`: a request that needs more of one resource than `[draw.admission.request]` or "
        "`[draw.admission.capacity]` has, or more bytes than `[draw.admission] max_open_bytes`",
        "`queue_full`: the queue of the request's latency class, or of a stage, is full; `try again in 2.5 s` where "
        "the time is known",
        "`deadline_exceeded`: not started within `deadline_ms`, Triton's own timeout, or "
        "`[draw.admission] max_wait_ms`",
        "`unavailable`: a stage died and is restarting; try again in some seconds",
        "`model_output_invalid`: the denoiser's output is not finite; only this request ends",
        INTERNAL_ERROR,
    ),
    batched=False,
    decoupled=True,
)

DRAW_MODELS: tuple[ModelSpec, ...] = (DRAW, TEXT_ENCODER, DENOISER, VAE_DECODER)


def text_encoder_of(tensor_names: Collection[str], *, pooled: bool) -> ModelSpec:
    """The text encoder of a checkpoint whose tokenizers fill the tensors of those names. Nothing of it is optional."""
    inputs = tuple(spec for spec in TEXT_ENCODER.inputs if spec not in INPUT_IDS or spec.name in tensor_names)
    outputs = tuple(spec for spec in TEXT_ENCODER.outputs if pooled or spec is not POOLED)
    return replace(
        TEXT_ENCODER,
        inputs=tuple(replace(spec, optional=False) for spec in inputs),
        outputs=tuple(replace(spec, optional=False) for spec in outputs),
    )


def denoiser_of(*, pooled: bool) -> ModelSpec:
    """The denoiser of a checkpoint with or without a pooled text."""
    return replace(DENOISER, inputs=tuple(spec for spec in DENOISER.inputs if pooled or spec.dims != POOLED.dims))


DRAW_REQUEST_DOCUMENT = """\
```json
{
  "prompt": "a red circle at the top left on a white background", "negative_prompt": "",
  "size": "64x64", "steps": 20, "guidance": 2.0, "sampler": "euler",
  "seed": 7, "first_index": 0, "n": 1,
  "format": "png", "quality": 90, "preview_every": 0, "preview_by": "linear",
  "request_id": "7f3c", "cache_scope": "", "tenant": "", "latency_class": "interactive", "deadline_ms": null
}
```

- `prompt` is the only field that must be there, and it is never empty. Nothing of a text is cut off: one with more
  tokens than the checkpoint reads is refused.
- `size`, `steps`, `guidance`, `sampler`, `format` and `quality` left out are the defaults of `[draw]`. Both sides of
  `size` are multiples of `[draw] side_multiple_px`.
- `guidance` 1 is none: the negative prompt is not read then, and each step costs half. A checkpoint that takes guidance
  as a number (distilled Flux) has no negative prompt: one is refused.
- `sampler` is `euler`, `ddim`, `heun` or `dpmpp_2m`; `heun` evaluates the model twice a step, but for the last one.
- `seed`, 0 to 2^63 - 1, makes a picture again, whatever else the server draws; null lets the server choose one below
  2^53, and tell.
  Picture i of the `n` has its noise from `seed` and `first_index` + i: any one of them can be had again by itself.
- `format` is `png`, `jpeg` or `webp`, as far as `[draw] formats` has it; `quality` is of JPEG and WebP.
- `preview_every` k asks for a preview at every k-th step, at most `[draw] max_previews_per_s` of them; one that is not
  ready when the next begins is left out. `preview_by` is `linear` (a map of the latent's channels to colours, cheap) or
  `decoder`.
- `request_id`, `cache_scope`, `tenant`, `latency_class`, `deadline_ms`: as those of `chat`. `interactive` waits in the
  queue for `media`; `deadline_ms` is the time from arrival until the first step.
- Unknown fields are refused, and so are Triton request parameters that the door does not know.
- Event of a preview: `{"kind": "preview", "index": 0, "step": 5, "steps": 20, "format": "png", "width_px": 64,
  "height_px": 64}`. `index` counts the pictures of this request.
- Event of a picture: `{"kind": "image", "index": 0, "seed": 7, "image_index": 0, "format": "png", "width_px": 64,
  "height_px": 64, "settings": {…}}`, as soon as it is done. `settings` are all that makes it again: prompt,
  negative_prompt, size, steps, guidance, sampler, seed, image_index, revision. A PNG has them as JSON in a text chunk
  named `proteus`, JPEG and WebP in the EXIF field ImageDescription.
- Report of the last response: `finish_reason` (`done` or `cancelled`), `usage` (`images` done, `text_tokens`,
  `evaluations`: rows of the denoiser's batches, `branches`, `latent_tokens`, `token_passes`), `stages_ms` (below),
  `first_preview_ms` from arrival, or null, `images` (`index`, `seed`, `image_index`, `finish_reason`, `evaluations`,
  `branches`, `accelerator_ms`: its share, by rows, of the time of its calls, `queue_ms`, `denoise_ms`).
- Stages: `parse`, `plan` (limits, tokens, cost), `admission` (waiting for capacity), `condition` (text_encoder),
  `queue` (for a place in the denoiser's loop), `denoise`, `decode` (vae_decoder), `encode` (the file), `transfer` (hops
  between models: what no stage holds), `total`. Of several pictures, they are those of the one that ended last.

A document `{"stop": {"request_id": "7f3c", "cache_scope": "", "tenant": ""}}` stops a request before its next step, and
is answered as that of `chat` is. Pictures that are done stay.

The limits are parameters of this model, under keys such as `draw.max_steps` ([limits.md](limits.md)); they are the
numbers that are enforced.
"""
