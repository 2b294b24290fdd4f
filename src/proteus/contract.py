"""The tensors of the Triton models that read: the source of config.pbtxt, docs/contract.md and the names used in code.

Dims by symbol: S side of the encoder's picture in px, N visual tokens of a picture, C width of the encoder's features,
D width of the language model; -1 is free. Those of the models that draw are in `proteus.contract_draw`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Dtype = Literal["BOOL", "UINT8", "INT32", "INT64", "FP32", "STRING"]
Symbol = Literal["S", "N", "C", "D", "L", "L2", "L3", "T", "E", "P", "Z"]
Dims = tuple[int | Symbol, ...]

CACHE_KEY_BYTES = 32
REQUEST_KEY_BYTES = MAILBOX_KEY_BYTES = 16
SCOPE_KEY_BYTES = 32
MEDIA_KEY_BYTES = 32
CHANNELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """What the symbols stand for in one export of a checkpoint that reads."""

    image_size_px: int  # S
    visual_tokens: int  # N
    feature_width: int  # C
    hidden_size: int  # D

    @property
    def numbers(self) -> Mapping[Symbol, int]:
        return {"S": self.image_size_px, "N": self.visual_tokens, "C": self.feature_width, "D": self.hidden_size}

    def resolve(self, dims: Dims) -> tuple[int, ...]:
        """Replace every symbol of `dims` by its number."""
        return resolved(dims, self.numbers)


def resolved(dims: Dims, numbers: Mapping[Symbol, int]) -> tuple[int, ...]:
    """`dims` with every symbol replaced by its number."""
    return tuple(dim if isinstance(dim, int) else numbers[dim] for dim in dims)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    name: str
    dtype: Dtype
    dims: Dims  # without the batch dim
    meaning: str
    optional: bool = False
    ragged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    name: str
    job: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    errors: tuple[str, ...]
    batched: bool = True
    decoupled: bool = False


IMAGE_BYTES = TensorSpec("image_bytes", "UINT8", (-1,), "one encoded picture (PNG, JPEG, …)", ragged=True)
CACHE_KEY = TensorSpec(
    "cache_key", "UINT8", (CACHE_KEY_BYTES,), "SHA-256 of everything the answer depends on (`proteus.cache.key`)"
)
CACHE_KEY_ECHO = TensorSpec(
    "cache_key_echo",
    "UINT8",
    (CACHE_KEY_BYTES,),
    "the key the answer was computed for; one that differs from the key asked for is a collision of the cache",
)
SCOPE_KEY = TensorSpec(
    "scope_key", "UINT8", (SCOPE_KEY_BYTES,), "SHA-256 of the cache scope: pixels are kept for equal ones only"
)
PREPROCESS_NS = TensorSpec(
    "preprocess_ns", "INT64", (2,), "monotonic clock of the machine: the picture's pixels were begun, and were there"
)
PREPROCESS_SAVED = TensorSpec(
    "preprocess_saved_us", "INT64", (1,), "0: computed; else from the processor cache, and what computing had taken"
)
ENCODER_NS = TensorSpec(
    "encoder_ns", "INT64", (2,), "monotonic clock: its batch was begun, and was done; zeros where the backend has none"
)
CONNECTOR_NS = TensorSpec("connector_ns", "INT64", (2,), "the same of the connector")
TARGET_PX = TensorSpec(
    "target_px",
    "INT32",
    (2,),
    "width and height, as one looks at the picture, to make it smaller to before anything else; 0 and 0: its own",
)
PIXEL_VALUES = TensorSpec("pixel_values", "FP32", (CHANNELS, "S", "S"), "resized, cropped, normalised RGB")
IMAGE_FEATURES = TensorSpec("image_features", "FP32", ("N", "C"), "selected layer(s) of the vision encoder")
VISUAL_TOKENS = TensorSpec("visual_tokens", "FP32", ("N", "D"), "embeddings the language model reads in place of ids")

# Of both models that keep a loop of their own, `llm` and `denoiser`.
REQUEST_KEY = TensorSpec(
    "request_key", "UINT8", (REQUEST_KEY_BYTES,), "random name of the request, for `stop`", optional=True
)
STOP = TensorSpec(
    "stop", "BOOL", (1,), "true: stop the request named by `request_key`; nothing else is read", optional=True
)
MAILBOX = TensorSpec(
    "mailbox",
    "UINT8",
    (MAILBOX_KEY_BYTES,),
    "the events go there, the one response only says that the request is accepted; for the door",
    optional=True,
)
COLLECT = TensorSpec(
    "collect", "BOOL", (1,), "true: answer once, with the events in `mailbox`, within a second", optional=True
)

PICTURE_ERRORS = (
    "`invalid_picture`: empty, truncated, not a picture, a format that is not allowed, too small, too elongated; or "
    "its decoder finds it damaged, dies of it or takes longer than `[decode] timeout_ms`",
    "`media_too_large`: over a limit of `[image]`, decided from the header; or over `[decode] memory_bytes`",
)
DECODE_ERRORS = (
    "`invalid_request`: a `target_px` with a side below 1",
    "`unavailable`: the processes that decode are being started anew; try again in some seconds",
)
QUEUE_ERROR = "a full queue (`max_queue` of the stage): Triton's own text, the door answers `queue_full`"
MODEL_ERRORS = (
    "`model_output_invalid`: the model's output cannot be used (not finite, all equal, stuck); only this request ends",
    "`stalled`: ours; the request got no further, although it was given work many times; the text says where it stood",
)
INTERNAL_ERROR = "`internal`: ours; the text is fixed, the cause is in the server's log"

IMAGE_PREPROCESS = ModelSpec(
    name="image_preprocess",
    job="Bytes of a picture to the pixels the encoder reads, equal to the checkpoint's own image processor.",
    inputs=(IMAGE_BYTES, SCOPE_KEY, TARGET_PX),
    outputs=(PIXEL_VALUES, PREPROCESS_NS, PREPROCESS_SAVED),
    errors=(*PICTURE_ERRORS, *DECODE_ERRORS, QUEUE_ERROR, INTERNAL_ERROR),
)
VISION_ENCODER = ModelSpec(
    name="vision_encoder",
    job="Pixels to features; a plain ONNX model.",
    inputs=(PIXEL_VALUES,),
    outputs=(IMAGE_FEATURES, ENCODER_NS),
    errors=(QUEUE_ERROR,),
)
CONNECTOR = ModelSpec(
    name="connector",
    job="Features to visual tokens; a plain ONNX model.",
    inputs=(IMAGE_FEATURES,),
    outputs=(VISUAL_TOKENS, CONNECTOR_NS),
    errors=(QUEUE_ERROR,),
)
IMAGE_TOKENS = ModelSpec(
    name="image_tokens",
    job="Ensemble of the three above. What it gives, the door keeps in its encoder cache.",
    inputs=(IMAGE_BYTES, SCOPE_KEY, TARGET_PX),
    outputs=(VISUAL_TOKENS, PREPROCESS_NS, PREPROCESS_SAVED, ENCODER_NS, CONNECTOR_NS),
    errors=(*PICTURE_ERRORS, *DECODE_ERRORS, QUEUE_ERROR, INTERNAL_ERROR),
)
LLM = ModelSpec(
    name="llm",
    job="Prompt ids and visual tokens to text, many requests in flight; one response per event, decoupled.",
    inputs=(
        TensorSpec("input_ids", "INT32", (-1,), "the prompt, placeholders already expanded", optional=True),
        TensorSpec("visual_tokens", "FP32", (-1, "D"), "rows of all pictures, in order", optional=True),
        TensorSpec("visual_spans", "INT32", (-1, 2), "(start, length) in `input_ids` of each picture", optional=True),
        TensorSpec(
            "media_keys",
            "UINT8",
            (-1, MEDIA_KEY_BYTES),
            "for each span, a digest of what its rows depend on: two requests of one cache scope with equal keys share "
            "the prefix cache; left out, it is taken from the rows",
            optional=True,
        ),
        TensorSpec(
            "sampling",
            "UINT8",
            (-1,),
            "JSON: max_tokens, min_tokens, temperature, top_p, top_k, min_p, frequency_penalty, presence_penalty, "
            "repetition_penalty, logit_bias, logprobs, top_logprobs, seed, stop, stop_token_ids; each may be left out, "
            "max_tokens then is 16; no answer outgrows the context",
            optional=True,
        ),
        TensorSpec(
            "scheduling",
            "UINT8",
            (-1,),
            "JSON: cache_scope, tenant, latency_class (`text`, `media` or `batch`), deadline_ms (from now, to get a "
            "slot); each may be left out",
            optional=True,
        ),
        REQUEST_KEY,
        STOP,
        MAILBOX,
        COLLECT,
    ),
    outputs=(
        TensorSpec("token_ids", "INT32", (-1,), "ids of this event"),
        TensorSpec("text", "UINT8", (-1,), "UTF-8 piece of this event, whole characters"),
        TensorSpec(
            "logprobs",
            "UINT8",
            (-1,),
            "JSON: `{token_id, logprob, top: [[token_id, logprob], …]}` for each of `token_ids`; where asked for",
        ),
        TensorSpec("finish_reason", "UINT8", (-1,), "`stop`, `length` or `cancelled`; last event only"),
        TensorSpec("cached_tokens", "INT32", (1,), "of the prompt, from the prefix cache; last event only"),
        TensorSpec("stage_us", "INT64", (3,), "queue, prefill, decode in µs; last event only"),
        TensorSpec("saved_us", "INT64", (1,), "of prefill, by the prefix cache, as estimated; last event only"),
        TensorSpec("events", "UINT8", (-1,), "JSON: events of all requests of the mailbox; for `collect` only"),
    ),
    errors=(
        "`invalid_request`: values of sampling or scheduling, spans, keys or rows that do not fit",
        "`prompt_too_long`: the prompt leaves no room in `[llm] context_tokens`",
        "`queue_full`: `[llm] slots` + `max_queue` requests are there already",
        "`deadline_exceeded`: no slot within `deadline_ms`",
        *MODEL_ERRORS,
        INTERNAL_ERROR,
    ),
    batched=False,
    decoupled=True,
)
CHAT = ModelSpec(
    name="chat",
    job="The door: a conversation with pictures to streamed text; one response per piece, decoupled.",
    inputs=(
        TensorSpec("request", "STRING", (1,), "the request document, JSON (below), or a document that stops a request"),
        TensorSpec("image_bytes", "UINT8", (-1,), "all pictures of the request, one after the other", optional=True),
        TensorSpec("image_lengths", "INT64", (-1,), "bytes of each picture in `image_bytes`", optional=True),
    ),
    outputs=(
        TensorSpec("text", "STRING", (1,), "UTF-8 piece of this event; may be empty"),
        TensorSpec("token_ids", "INT32", (-1,), "ids of this event"),
        TensorSpec("index", "INT32", (1,), "which of the `n` answers the event belongs to, from 0"),
        TensorSpec("logprobs", "STRING", (1,), "JSON list, one entry for each of `token_ids`; where asked for (below)"),
        TensorSpec("report", "STRING", (1,), "JSON: the report (below); last event only"),
    ),
    errors=(
        "`invalid_request`: the document, a field, a part, a parameter; the text names it, its limit and the fix",
        "`invalid_media`: base64 or a data URI that cannot be read; the text says what is wrong with it",
        *PICTURE_ERRORS,
        "`media_too_large` too: more pictures than `[image] max_pictures`, a picture over the caps of its tier, or a "
        "request that needs more of one resource than `[admission.request]` or `[admission.capacity]` has, or more "
        "bytes than `[admission] max_open_bytes`",
        "`media_not_supported`: the checkpoint's own processor takes no picture of this size; the text says why",
        "`fetch_failed`: a URL that `[fetch]` does not allow, or that gave no picture; never the remote's own words",
        "`prompt_too_long`: the prompt, visual tokens included, leaves no room in `[llm] context_tokens`",
        "`queue_full`: the queue of the request's latency class, or of a stage, is full; `try again in 2.5 s` where "
        "the time is known",
        "`deadline_exceeded`: not started within `deadline_ms`, Triton's own timeout, or `[admission] max_wait_ms`",
        "`unavailable`: a stage died and is restarting; try again in some seconds",
        *MODEL_ERRORS,
        INTERNAL_ERROR,
    ),
    batched=False,
    decoupled=True,
)

MODELS: tuple[ModelSpec, ...] = (CHAT, IMAGE_TOKENS, IMAGE_PREPROCESS, VISION_ENCODER, CONNECTOR, LLM)
ENCODER_MODELS = (IMAGE_TOKENS, IMAGE_PREPROCESS, VISION_ENCODER, CONNECTOR)  # a pool of their own may have them

REQUEST_DOCUMENT = """\
```json
{
  "messages": [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": [
      {"type": "text", "text": "Which is larger,"},
      {"type": "image", "detail": "low"},
      {"type": "text", "text": "or"},
      {"type": "image_url", "image_url": {"url": "data:image/png;base64,<base64>", "detail": "high"}}
    ]}
  ],
  "max_tokens": 16, "min_tokens": 0, "n": 1, "stop": [],
  "temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "seed": null,
  "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "logit_bias": {"17": -100},
  "logprobs": true, "top_logprobs": 2,
  "request_id": "7f3c", "cache_scope": "", "tenant": "", "latency_class": "interactive", "deadline_ms": null,
  "sent": null
}
```

- `messages` is the only field that must be there. `role` is `system`, `user` or `assistant`; `content` is text or a
  list of parts.
- A picture comes in one of three ways; what it is, its content decides, never a name or a declared type:
  - `{"type": "image"}` takes the next picture of `image_bytes`.
  - `{"type": "image", "data": "…"}` and `{"type": "image_url", "image_url": {"url": "data:…"}}` hold it in base64,
    alone or as a data URI. Whitespace, missing padding, a missing `data:` prefix and the URL-safe alphabet are fine.
  - `{"type": "image_url", "image_url": {"url": "https://…"}}` is fetched, where `[fetch] hosts` names the host. It is
    off otherwise (`fetch.enabled` of the published limits). [security.md](security.md) says what is checked.
- `detail` is the picture's tier: `low`, `auto` (when left out) or `high`. `[tiers]` says what each allows, and whether
  a larger picture is made smaller or refused.
- `temperature` 0 is greedy; `top_p` 1, `top_k` 0 and `min_p` 0 are off; `seed` makes a sampled answer repeatable,
  whatever else the server does.
- `max_tokens` left out means `[text] default_max_tokens`, or what the context leaves where that is less. `min_tokens`,
  never more than that, is how many come before the answer may end by itself.
- `frequency_penalty` and `presence_penalty` (-2 to 2) look at the answer, `repetition_penalty` (1 is off) at the text
  of the prompt as well. `logit_bias` adds -100 to 100 to the logits of at most 1,024 token ids.
- `n` answers, up to `[text] max_choices`, come interleaved; `index` says whose an event is. Pictures are encoded once;
  each answer has a place and a seed of its own, derived from `seed`, and the first has `seed` itself. One that fails
  ends the request, and a cancel ends them all.
- `logprobs` asks for natural logarithms of the model's own probabilities, before any field above changes them, with the
  `top_logprobs` (0 to 20) most likely tokens: `{token, logprob, bytes, top_logprobs: [{token, logprob, bytes}]}` for
  each id. `bytes` are exact where `token`, being no whole character, is not.
- `cache_scope` separates tenants: pictures encoded and prompts computed under one scope are never reused for another.
- `tenant` says whose share of the server it is: inside a latency class, those that wait take turns by tenant. Left out,
  it is `cache_scope`. The door believes it: what stands in front must set it.
- `latency_class` `batch` can wait, and waits in a queue of its own; `interactive` waits in that for `text`, or for
  `media` when it holds a picture.
- `deadline_ms` is the time until the language model begins, not to the end of the answer: from when the request was
  `sent`, where that is known, else from its arrival. It ends fetching, waiting and encoding too.
- `request_id`, 1 to 128 printable characters, names the request for a stop, as long as it is open; among the open
  requests of one tenant and cache scope it is the only one of that name.
- `sent` is when the client sent the request: `{"clock": "9f86d081884c7d65", "ns": 81234567890123}`, the monotonic clock
  of its machine, named by the first 16 hex digits of the SHA-256 of `/proc/sys/kernel/random/boot_id` (without the line
  end). A server with the same clock lets the request's time begin there, where that is at most 60 s ago; any other
  value means nothing. Our clients send it by themselves.
- Unknown fields are refused, and so are Triton request parameters that the door does not know.

The report of the last event:

- `finish_reason`: `stop`, `length` or `cancelled`; of the first answer.
- `usage`: `text_tokens` (every prompt token that is not visual), `visual_tokens`, `output_tokens` of all answers, and
  `cached_tokens` (of the prompt, what the prefix cache gave to every answer).
- `stages_ms`: what the request was waiting for, from its arrival on (or `sent`), one stage after the other. They add up
  to `total`, and those before `decode` to `ttft_ms`. A stage that did not take place is not there:
  - `ingress`: until it is read and planned, and asks to be admitted.
  - `admission`: until it has its capacity.
  - `preprocess`: until a picture's pixels are there, the way to them and the wait for a worker included. Not where they
    come from the processor cache.
  - `encoder_queue`: until the encoder begins the picture's batch. Not with an encoder that has no clock.
  - `encode`: until that batch is done; until the visual tokens are there, with an encoder that has no clock.
  - `connector`: until the connector's batch is done. Not with a connector that has no clock.
  - `transfer`: what no other stage holds: hops between models, cached pixels, the wait for the door's event loop.
  - `lm_queue`: until it has a slot in the language model.
  - `prefill`: until the first token is computed.
  - `decode`: from the first token on, as it leaves the door, to the last event.

  Text alone has none of the four from `preprocess` to `connector`, and neither has a request whose pictures all come
  from the encoder cache. Of several pictures, they are those of the one that came last; of a picture that another
  request had begun, only the rest that was waited for. Of several answers, all times are of the one that spoke first.
- `ingress_ms`: what `ingress` is made of: `transport` (from sent to arrived, where client and server share a clock),
  `parse`, `fetch` (pictures by URL), `plan` (base64, digests, headers, limits, cost), `prompt`. The rest of `ingress`
  are hops between threads.
- `ttft_ms`: until the first token leaves the door; null where there was none.
- `inter_token_ms`: `mean` and `max` of the waits between tokens; null for fewer than two tokens.
- `caches`: of `processor`, `encoder` and `prefix`, how often each was asked for this request (`lookups`), how often it
  had what was wanted (`hits`), and what computing that had taken (`saved_ms`). Of `prefix` that is estimated, by the
  mean time of a computed token, and `tokens` says how many it gave.
- `media`: of each picture of the prompt its `size` (by stored pixels, up to `0.25 MP`, `1 MP`, `4 MP`, `16 MP`,
  `64 MP` or `256 MP`), the encoder's `bucket`, its `tier`, whether it was `downscaled`, and its `visual_tokens`.
- `pictures`: of each distinct picture `encoded`, `cached` (visual tokens from the encoder cache) or `shared` with a
  request that encoded it at the same moment.
- `choices`: `index`, `finish_reason` and `output_tokens` of each answer.

A document of this form stops a request, whatever stage it is in:

```json
{"stop": {"request_id": "7f3c", "cache_scope": "", "tenant": ""}}
```

It is answered at once with the report `{"stopped": 1}`, or `{"stopped": 0}` where no open request of that tenant and
cache scope has that id: one of another tenant or scope is as unknown as one that never was. The stopped request ends as
if its client had left: `finish_reason` is `cancelled`, and what it had said stays.

The limits are parameters of this model, under keys such as `image.max_bytes` ([limits.md](limits.md)); they are the
numbers that are enforced.
"""
