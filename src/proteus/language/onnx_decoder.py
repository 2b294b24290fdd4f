"""The language model's two ONNX graphs over fixed slots of keys and values, written in place.

B rows of a batch, T prompt tokens, D width, V vocabulary. Past and present of a layer are the same memory
(GroupQueryAttention): a prefill sees one slot of it, a decode step the first B slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from pydantic import BaseModel, ConfigDict, ValidationError

from proteus.deployment import DeploymentError
from proteus.language.generation import GenerationRequest
from proteus.language.kv_slots import KvSlots

Floats = npt.NDArray[np.float32]
MANIFEST = "export.json"


class DecoderManifest(BaseModel):
    """What the exporter wrote about the language model, beside its graphs."""

    model_config = ConfigDict(frozen=True, extra="ignore")

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
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise DeploymentError(
                f"{path} is missing or wrong", fix="export the checkpoint: make export CHECKPOINT=folder"
            ) from error


@dataclass(frozen=True, slots=True)
class StepBinding:
    """One decode step of a fixed number of rows, bound to its memory once."""

    embed: ort.IOBinding
    decode: ort.IOBinding


class OnnxDecoder:
    """Not thread-safe: one thread runs prefills and steps, one after the other."""

    def __init__(self, folder: Path, manifest: DecoderManifest, slots: KvSlots, *, threads: int) -> None:
        self._embedding = _session(folder / "embedding.onnx", threads)
        self._decoder = _session(folder / "decoder.onnx", threads)
        self._slots = slots
        rows, width = slots.num_slots, manifest.hidden_size
        self._token_ids = np.zeros((rows, 1), dtype=np.int64)
        self._positions = np.zeros((rows, 1), dtype=np.int64)
        self._embeds = np.zeros((rows, 1, width), dtype=np.float32)
        self._last_places = np.zeros(rows, dtype=np.int32)  # seqlens_k: where each row's new token goes
        self._total_len = np.zeros((), dtype=np.int32)
        self._logits = np.zeros((rows, manifest.vocab_size), dtype=np.float32)
        self._steps = [self._bind_step(num_rows) for num_rows in range(1, rows + 1)]

    def prefill(self, slot: int, request: GenerationRequest) -> Floats:
        """Run the prompt into a slot, visual tokens in place of its placeholders; logits of the last token, (V,)."""
        ids = request.input_ids.astype(np.int64)[None]
        num_tokens = ids.shape[1]
        embeds: Floats = self._embedding.run(["inputs_embeds"], {"input_ids": ids})[0]  # (1, T, D)
        row = 0
        for start, length in request.visual_spans:
            if request.visual_tokens is not None:
                embeds[0, start : start + length] = request.visual_tokens[row : row + length]
            row += length
        positions = np.arange(num_tokens, dtype=np.int64)[None]
        last_place, total_len = np.array([num_tokens - 1], dtype=np.int32), np.array(num_tokens, dtype=np.int32)
        logits: Floats = np.empty(self._logits.shape[1], dtype=np.float32)
        binding = self._bind(embeds, positions, last_place, total_len, logits[None], slice(slot, slot + 1))
        self._decoder.run_with_iobinding(binding)
        return logits

    def step(self, token_ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32]) -> Floats:
        """Append one token to each of the first B slots, which hold `lengths` tokens; logits (B, V), valid until the
        next step. A row of length 0 writes only into place 0 of its slot: right for a free slot, and for no other."""
        num_rows = len(token_ids)
        self._token_ids[:num_rows, 0] = token_ids
        self._positions[:num_rows, 0] = lengths
        self._last_places[:num_rows] = lengths
        self._total_len[()] = lengths.max() + 1
        bound = self._steps[num_rows - 1]
        self._embedding.run_with_iobinding(bound.embed)
        self._decoder.run_with_iobinding(bound.decode)
        return self._logits[:num_rows]

    def _bind_step(self, num_rows: int) -> StepBinding:
        embed = self._embedding.io_binding()
        _bind_input(embed, "input_ids", self._token_ids[:num_rows])
        _bind_output(embed, "inputs_embeds", self._embeds[:num_rows])
        decode = self._bind(
            self._embeds[:num_rows],
            self._positions[:num_rows],
            self._last_places[:num_rows],
            self._total_len,
            self._logits[:num_rows],
            slice(0, num_rows),
        )
        return StepBinding(embed, decode)

    def _bind(
        self,
        embeds: Floats,
        positions: npt.NDArray[np.int64],
        last_places: npt.NDArray[np.int32],
        total_len: npt.NDArray[np.int32],
        logits: Floats,
        slots: slice,
    ) -> ort.IOBinding:
        binding = self._decoder.io_binding()
        _bind_input(binding, "inputs_embeds", embeds)
        _bind_input(binding, "position_ids", positions)
        _bind_input(binding, "seqlens_k", last_places)
        _bind_input(binding, "total_len", total_len)
        _bind_output(binding, "logits", logits)
        for kind, buffers in (("key", self._slots.keys), ("value", self._slots.values)):
            for layer, buffer in enumerate(buffers):
                _bind_input(binding, f"past_{kind}_{layer}", buffer[slots])
                _bind_output(binding, f"present_{kind}_{layer}", buffer[slots])
        return binding


def _session(path: Path, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Waiting threads must not burn the cores that the other stages compute on.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime raises its own kinds
        raise DeploymentError(f"{path} cannot be loaded", fix="export the checkpoint again") from error


def _bind_input(binding: ort.IOBinding, name: str, array: npt.NDArray[np.generic]) -> None:
    binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def _bind_output(binding: ort.IOBinding, name: str, array: npt.NDArray[np.generic]) -> None:
    binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
