"""The language model's ONNX graph over fixed slots of keys and values, written in place.

B rows of a batch, S new tokens of a prompt, R visual rows, D width, V vocabulary. Past and present of a layer are the
same memory (GroupQueryAttention): a prefill sees one slot of it, a decode step a range of slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from pydantic import BaseModel, ConfigDict, ValidationError

from proteus.deployment import DeploymentError
from proteus.language.kv_slots import KvSlots
from proteus.limits import Llm
from proteus.manifest import FORMAT
from proteus.onnx_session import open_session

Floats = npt.NDArray[np.float32]
MANIFEST = "export.json"
# Of a chunk that would leave one row alone: as many are computed by themselves.
_LAST_ROWS = 2


class DecoderManifest(BaseModel):
    """What the exporter wrote about the language model, beside its graphs."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int
    hidden_size: int
    vocab_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    context_tokens: int  # positions the checkpoint knows
    image_token_id: int
    eos_token_ids: tuple[int, ...]

    @classmethod
    def load(cls, folder: Path) -> DecoderManifest:
        """Raises DeploymentError naming the file and the fix."""
        path = folder / MANIFEST
        fix = "export the checkpoint: make export CHECKPOINT=folder"
        try:
            manifest = cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise DeploymentError(f"{path} is missing or wrong", fix=fix) from error
        if manifest.format != FORMAT:
            raise DeploymentError(f"{path} has format {manifest.format}", limit=f"format = {FORMAT}", fix=fix)
        return manifest

    def check_context(self, llm: Llm) -> None:
        """Raises DeploymentError where a context is longer than the checkpoint knows."""
        if llm.context_tokens > self.context_tokens:
            raise DeploymentError(
                f"[llm] context_tokens = {llm.context_tokens:,}",
                limit=f"the checkpoint knows {self.context_tokens:,} positions",
                fix="lower context_tokens",
            )


@dataclass(frozen=True, slots=True)
class StepBinding:
    """One decode step of a range of slots, bound to its memory once."""

    run: ort.IOBinding
    token_ids: npt.NDArray[np.int64]  # (B,)
    lengths: npt.NDArray[np.int32]  # (B,)
    logits: Floats  # (B, V)


class OnnxDecoder:
    """Not thread-safe: one thread runs prefills and steps, one after the other."""

    def __init__(self, folder: Path, manifest: DecoderManifest, slots: KvSlots, *, threads: int) -> None:
        self._session = open_session(folder / "decoder.onnx", threads)
        self._slots = slots
        # The attention operator takes 2 * head_dim new positions at a time, or half of that where a core's cache is
        # small. One position left over goes to another kernel, whose sums differ in the last bits.
        self._attention_rows = manifest.head_dim
        rows = slots.num_slots
        self._token_ids = np.zeros((rows, 1), dtype=np.int64)
        self._last_places = np.zeros(rows, dtype=np.int32)  # seqlens_k: where each row's last new token goes
        self._total_len = np.zeros((), dtype=np.int32)
        self._logits = np.zeros((rows, manifest.vocab_size), dtype=np.float32)
        self._no_rows = np.zeros((0, manifest.hidden_size), dtype=np.float32)
        self._no_places = np.zeros((0, 2), dtype=np.int64)
        self._prefills = [self._bind_slots(slot, 1) for slot in range(rows)]
        self._steps: dict[tuple[int, int], StepBinding] = {}
        self._prefill_options = ort.RunOptions()
        self._prefill_options.log_severity_level = 4  # giving way is no error

    def prefill(
        self, slot: int, token_ids: npt.NDArray[np.int64], start: int, rows: Floats, places: npt.NDArray[np.int64]
    ) -> Floats | None:
        """Append `token_ids` (S,) to a slot that holds `start` tokens; `rows` (R, D) stand for the ids at `places` (R,)
        of the chunk, in rising order. Logits of the last token, (V,); None where it gave way, and nothing is done.

        Keys, values and logits have the same bits however a prompt is cut, as long as no chunk has only one token.
        """
        num_tokens = len(token_ids)
        if num_tokens % self._attention_rows == 1 and num_tokens > 1:
            cut = num_tokens - _LAST_ROWS
            near = int(np.searchsorted(places, cut))
            if self._prefill(slot, token_ids[:cut], start, rows[:near], places[:near]) is None:
                return None
            return self._prefill(slot, token_ids[cut:], start + cut, rows[near:], places[near:] - cut)
        return self._prefill(slot, token_ids, start, rows, places)

    def give_way(self) -> None:
        """For any thread: the prefill that is going on ends before its next operator, and so does each until `stay`."""
        self._prefill_options.terminate = True

    def stay(self) -> None:
        """Prefills are whole again."""
        self._prefill_options.terminate = False

    def step(self, first: int, token_ids: Sequence[int], lengths: Sequence[int]) -> Floats:
        """Append one token to each of the B slots from `first` on, which hold `lengths` tokens; logits (B, V), valid
        until the next step. A row nobody decodes in writes one place beyond what its slot holds: give its true length.
        """
        num_rows = len(token_ids)
        bound = self._steps.get((first, num_rows)) or self._bind_step(first, num_rows)
        ids, places = bound.token_ids, bound.lengths
        for row in range(num_rows):  # for few rows faster than making arrays of the lists
            ids[row], places[row] = token_ids[row], lengths[row]
        self._total_len[()] = max(lengths) + 1
        self._session.run_with_iobinding(bound.run)
        return bound.logits

    def _prefill(
        self, slot: int, token_ids: npt.NDArray[np.int64], start: int, rows: Floats, places: npt.NDArray[np.int64]
    ) -> Floats | None:
        end = start + len(token_ids)
        given = {
            "input_ids": np.ascontiguousarray(token_ids, dtype=np.int64)[None],
            "visual_rows": np.ascontiguousarray(rows, dtype=np.float32) if len(places) else self._no_rows,
            "visual_places": np.stack([np.zeros_like(places), places], axis=1) if len(places) else self._no_places,
        }
        last_place = np.array([end - 1], dtype=np.int32)
        logits: Floats = np.empty(self._logits.shape[1], dtype=np.float32)
        binding = self._prefills[slot]
        for name, array in given.items():
            _bind_input(binding, name, array)
        _bind_input(binding, "seqlens_k", last_place)
        _bind_output(binding, "logits", logits[None])
        self._total_len[()] = end
        try:
            self._session.run_with_iobinding(binding, self._prefill_options)
        except RuntimeError:
            if self._prefill_options.terminate:
                return None
            raise
        return logits

    def _bind_step(self, first: int, num_rows: int) -> StepBinding:
        token_ids, lengths = self._token_ids[:num_rows], self._last_places[:num_rows]
        logits = self._logits[:num_rows]
        binding = self._bind_slots(first, num_rows)
        _bind_input(binding, "input_ids", token_ids)
        _bind_input(binding, "visual_rows", self._no_rows)
        _bind_input(binding, "visual_places", self._no_places)
        _bind_input(binding, "seqlens_k", lengths)
        _bind_output(binding, "logits", logits)
        bound = StepBinding(binding, token_ids[:, 0], lengths, logits)
        self._steps[first, num_rows] = bound
        return bound

    def _bind_slots(self, first: int, num_rows: int) -> ort.IOBinding:
        binding = self._session.io_binding()
        _bind_input(binding, "total_len", self._total_len)
        for kind, buffers in (("key", self._slots.keys), ("value", self._slots.values)):
            for layer, buffer in enumerate(buffers):
                _bind_input(binding, f"past_{kind}_{layer}", buffer[first : first + num_rows])
                _bind_output(binding, f"present_{kind}_{layer}", buffer[first : first + num_rows])
        return binding


def _bind_input(binding: ort.IOBinding, name: str, array: npt.NDArray[np.generic]) -> None:
    binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def _bind_output(binding: ort.IOBinding, name: str, array: npt.NDArray[np.generic]) -> None:
    binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
