"""The engine of the language model: in-flight batching over fixed slots on ONNX Runtime.

One thread does everything but `submit` and `cancel`; its loop is `_loop`. Who is computed for, and how much of a prompt
at a time, is the scheduler's choice; what the next token is, the sequence's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from proteus.deployment import DeploymentError
from proteus.errors import InternalError, ProteusError, Unavailable
from proteus.language.counts import Counts
from proteus.language.figures import EngineFigures
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
from proteus.language.prefix_reuse import PrefixReuse
from proteus.language.sampling import check_vocabulary
from proteus.language.scheduler import Scheduler
from proteus.language.stream import Detokenizer
from proteus.language.task import Chunk, Iteration, Task
from proteus.limits import Llm

__all__ = ["Emit", "Engine", "Event", "Failure", "Finish", "GenerationRequest", "OnnxEngine"]

log = logging.getLogger(__name__)
STOPPED = Unavailable("the language model stopped", fix="try again in some seconds")
Outcome = tuple[LiveSequence, Event | Failure]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Who decodes; the same from step to step until somebody joins or leaves. B of them, in a range of slots."""

    tasks: tuple[Task, ...]
    sequences: tuple[LiveSequence, ...]
    slots: npt.NDArray[np.intp]  # (B,)
    rows: npt.NDArray[np.intp]  # (B,) of the range
    range: slice  # of slots; others in it are computed for nothing


class OnnxEngine:
    """`folder` holds decoder.onnx and export.json; `tokenizer` is the checkpoint's, `revision` names its weights."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, llm: Llm, *, revision: str) -> None:
        manifest = DecoderManifest.load(folder)
        if llm.context_tokens > manifest.context_tokens:
            raise DeploymentError(
                f"[llm] context_tokens = {llm.context_tokens:,}",
                limit=f"the checkpoint knows {manifest.context_tokens:,} positions",
                fix="lower context_tokens",
            )
        self._limits = PromptLimits(
            vocab_size=manifest.vocab_size,
            hidden_size=manifest.hidden_size,
            context_tokens=llm.context_tokens,
            image_token_id=manifest.image_token_id,
        )
        self._eos_token_ids = frozenset(manifest.eos_token_ids)
        self._detokenizer = Detokenizer(tokenizer)
        slot_shape = (manifest.num_kv_heads, llm.context_tokens, manifest.head_dim)
        self._kv = KvSlots(llm.slots, manifest.num_layers, slot_shape)
        self._decoder = OnnxDecoder(folder, manifest, self._kv, threads=llm.threads)
        self._prefixes = PrefixReuse(llm.prefix_cache, self._kv, revision=revision)
        self._counts = Counts()
        self._token_ids = np.zeros(llm.slots, dtype=np.int64)  # of each slot, the token that is not yet in it
        self._lengths = np.zeros(llm.slots, dtype=np.int32)  # tokens in each slot
        self._batch = Batch(
            tasks=(), sequences=(), slots=np.zeros(0, np.intp), rows=np.zeros(0, np.intp), range=slice(0, 0)
        )
        self._changed = threading.Condition()  # guards all below
        self._scheduler = Scheduler(llm.schedule, slots=llm.slots, max_queue=llm.max_queue)
        self._live: dict[Task, LiveSequence] = {}
        self._closed = False
        self._gives_way = False  # a chunk of a picture's prompt is being computed
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest, emit: Emit) -> None:
        """As in Engine."""
        self._limits.check(request)
        check_vocabulary(request.sampling, self._limits.vocab_size)
        sequence = LiveSequence(
            request,
            emit,
            digests=self._prefixes.chain_of(request),
            detokenizer=self._detokenizer,
            eos_token_ids=self._eos_token_ids,
            limits=self._limits,
        )
        with self._changed:
            if self._closed:
                raise Unavailable("the language model is stopping", fix="try again in some seconds")
            self._scheduler.submit(sequence.task, time.monotonic())
            self._live[sequence.task] = sequence
            if self._gives_way and self._scheduler.owes_text():
                self._decoder.give_way()
            self._changed.notify()

    def cancel(self, request_key: bytes) -> None:
        """As in Engine."""
        with self._changed:
            self._scheduler.cancel(request_key)

    def close(self) -> None:
        """As in Engine; returns when the thread has ended."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def num_in_flight(self) -> int:
        """Requests that decode, prefill or wait."""
        with self._changed:
            return self._scheduler.num_in_flight

    def figures(self) -> EngineFigures:
        """For metrics, at this moment."""
        with self._changed:
            now = self._scheduler.figures()
        return EngineFigures(
            scheduler=now,
            prefixes=self._prefixes.figures(),
            counts=self._counts.copy(),
            copy_s=self._prefixes.copy_s,
            kv_allocated_bytes=self._kv.allocated_bytes,
            kv_bytes_per_token=self._kv.bytes_per_token,
            kv_used_tokens=int(self._lengths.sum()),
        )

    def check(self) -> None:
        """Raises RuntimeError when slots, queue and requests in flight do not add up."""
        with self._changed:
            self._scheduler.check()
            if len(self._live) != self._scheduler.num_in_flight:
                raise RuntimeError(f"{len(self._live)} sequences, {self._scheduler.num_in_flight} in flight")

    def _run(self) -> None:
        try:
            self._loop()
        except Exception:
            log.exception("the engine's loop ended")
        finally:
            with self._changed:
                self._closed = True
                left = [self._forget(task) for task in self._scheduler.end_all()]
            for sequence in left:
                self._counts.ended(sequence, STOPPED.code)
                sequence.send(Failure(STOPPED))

    def _loop(self) -> None:
        while (iteration := self._next()) is not None:
            self._counts.iterations += 1
            for task in iteration.placed:
                self._live[task].note_placed()
            for chunk in iteration.chunks:
                if not chunk.task.visual_tokens:
                    self._prefill(chunk)
            if iteration.decodes:
                self._decode(iteration.decodes)
            for chunk in iteration.chunks:
                if chunk.task.visual_tokens:
                    self._prefill_media(chunk)

    def _next(self) -> Iteration | None:
        """Waits for work; None: closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._scheduler.has_work())
            if self._closed:
                return None
            iteration = self._scheduler.next(time.monotonic())
            cancelled = [self._forget(task) for task in iteration.cancelled]
            refused = [(self._forget(task), error) for task, error in iteration.refused]
        for sequence in cancelled:
            self._counts.ended(sequence, "cancelled")
            sequence.send(sequence.cancelled())
        for sequence, error in refused:
            self._counts.ended(sequence, error.code)
            sequence.send(Failure(error))
        return iteration

    def _decode(self, tasks: tuple[Task, ...]) -> None:
        """One token for everyone who decodes."""
        if tasks is not self._batch.tasks:
            self._batch = self._batch_of(tasks)
        batch = self._batch
        begin_s = time.perf_counter()
        try:
            range_ = batch.range
            logits = self._decoder.step(range_.start, self._token_ids[range_], self._lengths[range_])
            highest = logits.argmax(axis=1)[batch.rows]
            peaks = logits[batch.rows, highest]  # numpy takes NaN for the highest
        except Exception:
            log.exception("decode step failed")
            self._settle((sequence, Failure(InternalError())) for sequence in batch.sequences)
            return
        self._lengths[batch.slots] += 1
        self._counts.decode_s += time.perf_counter() - begin_s
        rows = zip(batch.sequences, batch.rows.tolist(), highest.tolist(), peaks.tolist(), strict=True)
        self._settle([self._advance(sequence, logits[row], id_, peak) for sequence, row, id_, peak in rows])

    def _batch_of(self, tasks: tuple[Task, ...]) -> Batch:
        slots = np.array([task.slot for task in tasks])
        first, last = int(slots.min()), int(slots.max())
        sequences = tuple(self._live[task] for task in tasks)
        return Batch(tasks=tasks, sequences=sequences, slots=slots, rows=slots - first, range=slice(first, last + 1))

    def _prefill_media(self, chunk: Chunk) -> None:
        """A chunk that gives way to text which can have a slot: one that is due, or comes while it is computed.

        Not twice in a row: the picture gets on at least every other time.
        """
        sequence = self._live.get(chunk.task)
        if sequence is None:
            return  # it failed in this iteration
        with self._changed:
            self._gives_way = not sequence.gave_way
            sequence.gave_way = self._gives_way and self._scheduler.owes_text()
        if not sequence.gave_way:
            self._prefill(chunk)
        self._gives_way = False

    def _prefill(self, chunk: Chunk) -> None:
        task = chunk.task
        sequence = self._live.get(task)
        if sequence is None:
            return  # it failed in this iteration
        self._restore(sequence)
        tokens, start = chunk.due, task.prefilled
        begin_s = time.perf_counter()
        try:
            ids, rows, places = sequence.prompt.piece(start, start + tokens, self._limits.hidden_size)
            logits = self._decoder.prefill(task.slot, ids, start, rows, places)
        except Exception:
            log.exception("prefill failed")
            self._settle([(sequence, Failure(InternalError()))])
            return
        if logits is None:
            sequence.gave_way = True
            self._counts.note_given_up(tokens, time.perf_counter() - begin_s)
            return
        self._counts.note_prefill(tokens, time.perf_counter() - begin_s)
        self._note_prefilled(task, tokens)
        if task.prefilled == task.prompt_tokens:
            sequence.prompt.forget_rows()
            self._prefixes.count(prompt_tokens=task.prompt_tokens, cached_tokens=sequence.cached_tokens)
            highest = int(logits.argmax())
            self._settle([self._advance(sequence, logits, highest, float(logits[highest]))])
        self._prefixes.keep(sequence.prompt.digests, task.slot, task.prefilled)

    def _restore(self, sequence: LiveSequence) -> None:
        """What the prefix cache has, at the start of each chunk: a donor may be only some chunks ahead."""
        task = sequence.task
        cached = self._prefixes.restore(sequence.prompt.digests, task.slot, task.prefilled, task.prompt_tokens)
        if cached:
            sequence.cached_tokens += cached
            self._counts.cached_tokens += cached
            self._note_prefilled(task, cached)

    def _note_prefilled(self, task: Task, tokens: int) -> None:
        with self._changed:
            self._scheduler.prefilled(task, tokens)
        self._lengths[task.slot] = task.prefilled

    def _advance(self, sequence: LiveSequence, logits: Floats, highest: int, peak: float) -> Outcome:
        """The next token of one sequence, or why there is none; `peak` is the value of logits (V,) at `highest`."""
        try:
            event = sequence.next_event(logits, highest, peak)
        except ProteusError as error:
            return sequence, Failure(error)
        except Exception:
            log.exception("a token could not be chosen or decoded")
            return sequence, Failure(InternalError())
        self._token_ids[sequence.task.slot] = sequence.last_token
        return sequence, event

    def _settle(self, outcomes: Iterable[Outcome]) -> None:
        """Tell the scheduler, then the clients: a place is free before its client hears of it."""
        outcomes = list(outcomes)
        with self._changed:
            for sequence, event in outcomes:
                if isinstance(event, Failure):
                    self._end(sequence, event.error.code)
                    continue
                self._scheduler.generated(sequence.task)
                self._counts.output_tokens += 1
                if event.finish is not None:
                    self._end(sequence, event.finish.reason)
        for sequence, event in outcomes:
            if not sequence.send(event) and sequence.task in self._live:
                with self._changed:
                    self._end(sequence, "cancelled")

    def _end(self, sequence: LiveSequence, outcome: str) -> None:
        self._scheduler.end(sequence.task)
        self._forget(sequence.task)
        self._counts.ended(sequence, outcome)

    def _forget(self, task: Task) -> LiveSequence:
        """Of a task that the scheduler has no more."""
        if task.slot >= 0:
            self._lengths[task.slot] = 0
        return self._live.pop(task)
