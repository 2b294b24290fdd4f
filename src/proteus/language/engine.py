"""The engine of the language model: in-flight batching over fixed slots on ONNX Runtime.

One thread does everything but `submit` and `cancel`; its loop is `_loop`. Requests join while others decode, a prefill
at a time, so that a long queue delays the running answers by one prefill per token and no more.
"""

from __future__ import annotations

import logging
import math
import threading
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from proteus.deployment import DeploymentError
from proteus.errors import InternalError, Unavailable
from proteus.language.generation import (
    Emit,
    Engine,
    Event,
    Failure,
    Finish,
    GenerationRequest,
    PromptLimits,
)
from proteus.language.kv_slots import KvSlots
from proteus.language.live_sequence import LiveSequence
from proteus.language.onnx_decoder import DecoderManifest, Floats, OnnxDecoder
from proteus.language.schedule import Schedule
from proteus.language.stream import Detokenizer

__all__ = ["Emit", "Engine", "Event", "Failure", "Finish", "GenerationRequest", "OnnxEngine"]

log = logging.getLogger(__name__)


class OnnxEngine:
    """`folder` holds embedding.onnx, decoder.onnx and export.json; `tokenizer` is the checkpoint's."""

    def __init__(
        self, folder: Path, tokenizer: Tokenizer, *, slots: int, context_tokens: int, max_queue: int, threads: int
    ) -> None:
        manifest = DecoderManifest.load(folder)
        if context_tokens > manifest.context_tokens:
            raise DeploymentError(
                f"[llm] context_tokens = {context_tokens:,}",
                limit=f"the checkpoint knows {manifest.context_tokens:,} positions",
                fix="lower context_tokens",
            )
        self._limits = PromptLimits(
            vocab_size=manifest.vocab_size,
            hidden_size=manifest.hidden_size,
            context_tokens=context_tokens,
            image_token_id=manifest.image_token_id,
        )
        self._eos_token_ids = frozenset(manifest.eos_token_ids)
        self._detokenizer = Detokenizer(tokenizer)
        kv = KvSlots(slots, manifest.num_layers, (manifest.num_kv_heads, context_tokens, manifest.head_dim))
        self._decoder = OnnxDecoder(folder, manifest, kv, threads=threads)
        self._schedule = Schedule(kv, max_queue=max_queue)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest, emit: Emit) -> None:
        """As in Engine."""
        self._limits.check(request)
        sequence = LiveSequence(
            request,
            emit,
            detokenizer=self._detokenizer,
            eos_token_ids=self._eos_token_ids,
            context_tokens=self._limits.context_tokens,
            vocab_size=self._limits.vocab_size,
        )
        self._schedule.submit(sequence)

    def cancel(self, request_key: bytes) -> None:
        """As in Engine."""
        self._schedule.cancel(request_key)

    def close(self) -> None:
        """As in Engine; returns when the thread has ended."""
        self._schedule.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def num_in_flight(self) -> int:
        """Requests that decode or wait."""
        return self._schedule.num_in_flight

    def check(self) -> None:
        """Raises RuntimeError when slots, queue and requests in flight do not add up."""
        self._schedule.check()

    def _run(self) -> None:
        try:
            self._loop()
        except Exception:
            log.exception("the engine's loop ended")
        finally:
            for sequence in self._schedule.take_all():
                sequence.send(Failure(Unavailable("the language model stopped", fix="try again in some seconds")))

    def _loop(self) -> None:
        while self._schedule.wait_for_work():
            for sequence in self._schedule.take_cancelled():
                sequence.send(sequence.cancelled())
            if (admitted := self._schedule.admit()) is not None:
                self._prefill(*admitted)
            if running := self._schedule.running():
                self._decode(running)

    def _prefill(self, slot: int, sequence: LiveSequence) -> None:
        sequence.note_admitted()
        try:
            logits = self._decoder.prefill(slot, sequence.request)
        except Exception:
            log.exception("prefill failed")
            self._fail(sequence)
            return
        self._advance(sequence, logits, int(logits.argmax()), float(logits.max()))

    def _decode(self, running: list[tuple[int, LiveSequence]]) -> None:
        """One token for everyone who runs; rows of free slots between them are computed for nothing."""
        num_rows = max(slot for slot, _ in running) + 1
        token_ids, lengths = np.zeros(num_rows, dtype=np.int64), np.zeros(num_rows, dtype=np.int32)
        for slot, sequence in running:
            token_ids[slot], lengths[slot] = sequence.last_token, sequence.num_in_slot
        try:
            logits = self._decoder.step(token_ids, lengths)
            highest, peaks = logits.argmax(axis=1).tolist(), logits.max(axis=1).tolist()
        except Exception:
            log.exception("decode step failed")
            for _, sequence in running:
                self._fail(sequence)
            return
        for slot, sequence in running:
            self._advance(sequence, logits[slot], highest[slot], peaks[slot])

    def _advance(self, sequence: LiveSequence, logits: Floats, highest: int, peak: float) -> None:
        """Give one sequence its next token. `highest` is argmax, `peak` the maximum: NaN where any logit is NaN."""
        if not math.isfinite(peak):
            log.error("logits are not finite")
            self._fail(sequence)
            return
        try:
            event = sequence.accept(sequence.sampler.choose(logits, highest, peak))
        except Exception:
            log.exception("a token could not be chosen or decoded")
            self._fail(sequence)
            return
        # A place is free before its client hears of it: what the client sends next finds it.
        if event.finish is not None:
            self._schedule.end(sequence)
            sequence.send(event)
        elif not sequence.send(event):
            self._schedule.end(sequence)

    def _fail(self, sequence: LiveSequence) -> None:
        self._schedule.end(sequence)
        sequence.send(Failure(InternalError()))
