"""Each ONNX file against torch, on batch and sequence sizes other than those it was traced with.

A tracer can bake an example's size into a graph that is right on the example and wrong elsewhere; so nothing here uses
the example's sizes. KV buffers start as noise: a graph that reads a row it should not gets a wrong answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import LlavaForConditionalGeneration

from proteus.errors import ProteusError

TOLERANCE = 1e-4  # of the largest value of the reference; float32 sums in another order give about 1e-6
SLOTS = 4
STEPS = 6
_LENGTHS = (37, 5, 80, 1)  # tokens in each slot before decoding
_CHUNKS = (30, 1, 24)
_NOISE = 30.0
_VISUAL_SHARE = 0.4  # of the positions of a prompt

Floats = NDArray[np.float32]


class ParityError(ProteusError):
    """A graph does not compute what torch computes; the text names graph, case and numbers. Stops the export."""

    code = "export_mismatch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One case of one graph; differences are absolute, `scale` is the largest value of the reference."""

    graph: str
    case: str
    max_abs_diff: float
    scale: float


def compare(graph: str, case: str, got: Floats, want: Floats) -> Comparison:
    """Raises ParityError when shapes differ, or values differ by more than TOLERANCE of the scale or are no numbers."""
    if got.shape != want.shape:
        raise ParityError(f"{graph}, {case}: shape {got.shape}, torch has {want.shape}", fix=_FIX)
    scale = float(np.abs(want).max())
    diff = float(np.abs(got - want).max())
    if not diff <= TOLERANCE * scale:  # also true of NaN
        raise ParityError(
            f"{graph}, {case}: differs from torch by {diff:.3g} at scale {scale:.3g}",
            limit=f"{TOLERANCE:g} of the scale = {TOLERANCE * scale:.3g}",
            fix=_FIX,
        )
    return Comparison(graph=graph, case=case, max_abs_diff=diff, scale=scale)


_FIX = "report it with the checkpoint's config.json; nothing was written"


def open_session(path: Path) -> ort.InferenceSession:
    """One thread, CPU."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def check_vision_encoder(path: Path, model: LlavaForConditionalGeneration) -> Iterator[Comparison]:
    session = open_session(path)
    for batch in (1, 3):
        pixel_values = _pixels(model, batch, seed=batch)
        want, _ = reference_features(model, pixel_values)
        (got,) = session.run(["image_features"], {"pixel_values": pixel_values.numpy()})
        yield compare("vision_encoder", f"batch {batch}", got, want)


def check_connector(path: Path, model: LlavaForConditionalGeneration) -> Iterator[Comparison]:
    session = open_session(path)
    for batch in (1, 3):
        features, want = reference_features(model, _pixels(model, batch, seed=batch))
        (got,) = session.run(["visual_tokens"], {"image_features": features})
        yield compare("connector", f"batch {batch}", got, want)


@torch.no_grad()
def reference_features(model: LlavaForConditionalGeneration, pixel_values: Tensor) -> tuple[Floats, Floats]:
    """(B, N, C) and (B, N, D): what enters and leaves the connector in transformers' own get_image_features."""
    seen: list[Tensor] = []
    hook = model.model.multi_modal_projector.register_forward_hook(lambda _, given, __: seen.append(given[0]))
    try:
        visual_tokens = torch.stack(tuple(model.get_image_features(pixel_values).pooler_output))
    finally:
        hook.remove()
    return seen[0].numpy(), visual_tokens.numpy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Ids (B, S), and rows (R, D) that stand for the ids at `places` (R, 2): row and position."""

    ids: NDArray[np.int64]
    rows: Floats
    places: NDArray[np.int64]

    def cut(self, start: int, end: int) -> Prompt:
        """Positions from `start` up to `end`."""
        kept = (self.places[:, 1] >= start) & (self.places[:, 1] < end)
        return Prompt(ids=self.ids[:, start:end], rows=self.rows[kept], places=self.places[kept] - (0, start))

    @staticmethod
    def below(prompts: Sequence[Prompt]) -> Prompt:
        """Prompts of equal length as the rows of one."""
        return Prompt(
            ids=np.concatenate([prompt.ids for prompt in prompts]),
            rows=np.concatenate([prompt.rows for prompt in prompts]),
            places=np.concatenate([prompt.places + (row, 0) for row, prompt in enumerate(prompts)]),
        )


class SlotSession:
    """The decoder over KV buffers that are input and output at once, as the engine runs it."""

    def __init__(self, path: Path, model: LlavaForConditionalGeneration, *, slots: int, context: int) -> None:
        self._session = open_session(path)
        rng = np.random.default_rng(0)
        text = model.config.text_config
        shape = (slots, text.num_key_value_heads, context, model.model.language_model.layers[0].self_attn.head_dim)
        names = [name.name for name in self._session.get_inputs() if name.name.startswith("past_")]
        self.past: dict[str, Floats] = {
            name: (_NOISE * rng.standard_normal(shape)).astype(np.float32) for name in names
        }
        self.context = context

    def run(self, prompt: Prompt, starts: Sequence[int], *, slot: int = 0) -> Floats:
        """`prompt` goes on at `starts` in the B slots from `slot`; returns logits (B, V)."""
        batch, length = prompt.ids.shape
        begin = np.asarray(starts, np.int64)
        binding = self._session.io_binding()
        binding.bind_cpu_input("input_ids", np.ascontiguousarray(prompt.ids))
        binding.bind_cpu_input("visual_rows", np.ascontiguousarray(prompt.rows))
        binding.bind_cpu_input("visual_places", np.ascontiguousarray(prompt.places))
        binding.bind_cpu_input("seqlens_k", (begin + length - 1).astype(np.int32))
        binding.bind_cpu_input("total_len", np.asarray(begin.max() + length, np.int32))
        binding.bind_output("logits")  # first, so that it is the first of get_outputs()
        for name, buffer in self.past.items():
            view = buffer[slot : slot + batch]
            place = ("cpu", 0, np.float32, view.shape, view.ctypes.data)
            binding.bind_input(name, *place)
            binding.bind_output(name.replace("past_", "present_"), *place)
        self._session.run_with_iobinding(binding)
        return binding.get_outputs()[0].numpy()

    def copy(self) -> dict[str, Floats]:
        return {name: buffer.copy() for name, buffer in self.past.items()}

    def changed_outside(self, before: dict[str, Floats], allowed: dict[int, range]) -> int:
        """Number of values that differ from `before` in rows other than `allowed[slot]`."""
        count = 0
        for name, buffer in self.past.items():
            changed = buffer != before[name]
            for slot, rows in allowed.items():
                changed[slot, :, rows.start : rows.stop] = False
            count += int(changed.sum())
        return count


def check_decoder(path: Path, model: LlavaForConditionalGeneration) -> Iterator[Comparison]:
    """Prefill, ragged decode, a newcomer among others, chunks; each against torch over the whole sequence at once."""
    lengths, chunks, context = _sizes(model)
    session = SlotSession(path, model, slots=SLOTS, context=context)
    sequences = [_Sequence(model, length + 2 * STEPS + 1, seed=slot) for slot, length in enumerate(lengths)]
    yield from _prefill(session, sequences, lengths)
    yield _decode(session, sequences, lengths, slots=SLOTS, case="ragged decode of all slots")
    later = [length + STEPS for length in lengths]
    newcomer = _Sequence(model, lengths[2] + STEPS, seed=9)
    yield from _prefill(session, [sequences[0], newcomer], [later[0], lengths[2]], only=1, case="newcomer in slot 1")
    sequences[1], later[1] = newcomer, lengths[2]
    yield _decode(session, sequences, later, slots=SLOTS - 1, case="ragged decode of the first slots")
    yield _chunked(session, _Sequence(model, sum(chunks), seed=10), chunks)


class _Sequence:
    """Random ids with rows of noise among them, and the logits (L, V) that torch gives after each position."""

    @torch.no_grad()
    def __init__(self, model: LlavaForConditionalGeneration, length: int, *, seed: int) -> None:
        ids = _ids(model, length, seed)[None]
        embeds = model.get_input_embeddings()(ids)
        rng = np.random.default_rng(seed)
        places = np.flatnonzero(rng.random(length) < _VISUAL_SHARE)
        rows = rng.standard_normal((len(places), embeds.shape[-1])).astype(np.float32) * float(embeds.std())
        embeds[0, places] = torch.from_numpy(rows)
        hidden = model.model.language_model(inputs_embeds=embeds, use_cache=False).last_hidden_state
        self.logits: Floats = model.lm_head(hidden)[0].numpy()
        self.prompt = Prompt(ids=ids.numpy(), rows=rows, places=np.stack([np.zeros_like(places), places], axis=1))


def _sizes(model: LlavaForConditionalGeneration) -> tuple[list[int], list[int], int]:
    """Lengths, chunks and the slots' length: cut to a short context, stretched past a sliding window."""
    text = model.config.text_config
    limit = text.max_position_embeddings
    room = limit - 2 * STEPS - 1
    if room < 1:
        raise ParityError(f"the checkpoint's context is {limit} tokens", limit=f"at least {2 * STEPS + 2}", fix=_FIX)
    lengths = [min(length, room) for length in _LENGTHS]
    chunks = [max(1, min(length, limit // len(_CHUNKS))) for length in _CHUNKS]
    window = getattr(text, "sliding_window", None)
    if window is not None and window < room:
        lengths[0], chunks[0] = min(window + _LENGTHS[1], room), min(window + _LENGTHS[1], limit - sum(chunks[1:]))
    return lengths, chunks, max(*lengths, sum(chunks)) + 2 * STEPS + 1


def _prefill(
    session: SlotSession,
    sequences: Sequence[_Sequence],
    lengths: Sequence[int],
    *,
    only: int | None = None,
    case: str = "prefill",
) -> Iterator[Comparison]:
    for slot in range(len(sequences)) if only is None else (only,):
        before = session.copy()
        got = session.run(sequences[slot].prompt.cut(0, lengths[slot]), [0], slot=slot)
        name = f"{case} of {lengths[slot]}" if only is not None else f"{case} of {lengths[slot]} into slot {slot}"
        _untouched(session, before, {slot: range(lengths[slot])}, name)
        yield compare("decoder", name, got, sequences[slot].logits[lengths[slot] - 1][None])


def _decode(
    session: SlotSession, sequences: Sequence[_Sequence], lengths: Sequence[int], *, slots: int, case: str
) -> Comparison:
    """The worst of STEPS steps of the first `slots` slots."""
    before = session.copy()
    results = []
    for step in range(STEPS):
        at = [length + step for length in lengths[:slots]]
        rows = Prompt.below([sequences[slot].prompt.cut(at[slot], at[slot] + 1) for slot in range(slots)])
        want = np.stack([sequences[slot].logits[at[slot]] for slot in range(slots)])
        results.append(compare("decoder", f"{case}, step {step}", session.run(rows, at), want))
    written = {slot: range(lengths[slot], lengths[slot] + STEPS) for slot in range(slots)}
    _untouched(session, before, written, case)
    worst = max(results, key=lambda result: result.max_abs_diff)
    return Comparison(graph="decoder", case=case, max_abs_diff=worst.max_abs_diff, scale=worst.scale)


def _chunked(session: SlotSession, sequence: _Sequence, chunks: Sequence[int]) -> Comparison:
    case = "prefill in chunks of " + ", ".join(map(str, chunks))
    worst = None
    for end, length in zip(accumulate(chunks), chunks, strict=True):
        got = session.run(sequence.prompt.cut(end - length, end), [end - length], slot=SLOTS - 1)
        result = compare("decoder", case, got, sequence.logits[end - 1][None])
        worst = result if worst is None or result.max_abs_diff > worst.max_abs_diff else worst
    if worst is None:
        raise RuntimeError("no chunks")
    return worst


def _untouched(session: SlotSession, before: dict[str, Floats], allowed: dict[int, range], case: str) -> None:
    count = session.changed_outside(before, allowed)
    if count:
        raise ParityError(f"decoder, {case}: {count} values of the KV buffers outside its rows changed", fix=_FIX)


def check_together(repository: Path, model: LlavaForConditionalGeneration) -> Iterator[Comparison]:
    """Two pictures among text through all files, against the model's own forward."""
    image_token, text = model.config.image_token_id, model.config.text_config
    pixel_values = _pixels(model, 2, seed=11)
    run = {name: open_session(repository / f"{name}/1/model.onnx") for name in ("vision_encoder", "connector")}
    (features,) = run["vision_encoder"].run(["image_features"], {"pixel_values": pixel_values.numpy()})
    (visual_tokens,) = run["connector"].run(["visual_tokens"], {"image_features": features})
    picture = torch.full((visual_tokens.shape[1],), image_token)
    ids = torch.cat([_ids(model, 3, seed=12), picture, _ids(model, 4, seed=13), picture, _ids(model, 5, seed=14)])[None]
    if ids.shape[1] > text.max_position_embeddings:
        return
    with torch.no_grad():
        want = model(input_ids=ids, pixel_values=pixel_values, logits_to_keep=1).logits[:, 0].numpy()
    places = np.flatnonzero(ids[0].numpy() == image_token)
    prompt = Prompt(
        ids=ids.numpy(),
        rows=visual_tokens.reshape(-1, visual_tokens.shape[-1]),
        places=np.stack([np.zeros_like(places), places], axis=1),
    )
    session = SlotSession(repository / "llm/1/decoder.onnx", model, slots=2, context=ids.shape[1] + 1)
    got = session.run(prompt, [0], slot=1)
    yield compare("all together", "two pictures in one prompt", got, want)


CHECKS: dict[str, Callable[[Path, LlavaForConditionalGeneration], Iterator[Comparison]]] = {
    "vision_encoder": check_vision_encoder,
    "connector": check_connector,
    "decoder": check_decoder,
}


def _pixels(model: LlavaForConditionalGeneration, batch: int, *, seed: int) -> Tensor:
    vision = model.config.vision_config
    shape = (batch, vision.num_channels, vision.image_size, vision.image_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _ids(model: LlavaForConditionalGeneration, count: int, seed: int) -> Tensor:
    """Random ids without the image placeholder."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, model.config.text_config.vocab_size - 1, (count,), generator=generator)
    return ids + (ids >= model.config.image_token_id)
