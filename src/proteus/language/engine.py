"""The engine of the language model: in-flight batching over fixed slots on ONNX Runtime.

One thread does everything but `submit` and `cancel`; its loop is `_loop`. Who is computed for, and how much of a prompt
at a time, is the scheduler's choice; what the next token is, the sequence's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

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
from proteus.language.task import Chunk, Iteration, Move, Task
from proteus.limits import Llm

__all__ = ["Emit", "Engine", "Event", "Failure", "Finish", "GenerationRequest", "OnnxEngine"]

log = logging.getLogger(__name__)
Outcome = tuple[LiveSequence, Event | Failure]
Members = tuple[tuple[LiveSequence, int], ...]  # with the row of logits that each goes on from


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Who decodes; the same from step to step until somebody joins or leaves."""

    tasks: tuple[Task, ...]
    members: Members
    range: slice  # of slots; others in it are computed for nothing


class OnnxEngine:
    """`folder` holds decoder.onnx and export.json; `tokenizer` is the checkpoint's, `revision` names its weights."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, llm: Llm, *, revision: str) -> None:
        manifest = DecoderManifest.load(folder)
        manifest.check_context(llm)
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
        self._token_ids = [0] * llm.slots  # of each slot, the token that is not yet in it
        self._lengths = [0] * llm.slots  # tokens in each slot
        self._batch: Batch | None = None  # of the last step
        self._lock = threading.RLock()  # guards all below
        self._changed = threading.Condition(self._lock)
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
            links=self._prefixes.chain_of(request),
            detokenizer=self._detokenizer,
            eos_token_ids=self._eos_token_ids,
            limits=self._limits,
        )
        with self._lock:
            if self._closed:
                raise Unavailable("the language model is stopping", fix="try again in some seconds")
            self._scheduler.submit(sequence.task, time.monotonic())
            self._live[sequence.task] = sequence
            if self._gives_way and self._scheduler.owes_text():
                self._decoder.give_way()
            self._changed.notify()

    def cancel(self, request_key: bytes) -> None:
        """As in Engine."""
        with self._lock:
            self._scheduler.cancel(request_key)

    def close(self) -> None:
        """As in Engine; returns when the thread has ended."""
        with self._lock:
            self._closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def num_in_flight(self) -> int:
        """Requests that decode, prefill or wait."""
        with self._lock:
            return self._scheduler.num_in_flight

    @property
    def num_iterations(self) -> int:
        """Since the start: as long as something is in flight, it grows."""
        return self._counts.iterations

    @property
    def is_alive(self) -> bool:
        """Whether the loop goes on; it ends by `close`, or by a failure that was not a request's own."""
        return self._thread.is_alive()

    def figures(self) -> EngineFigures:
        """For metrics, at this moment."""
        with self._lock:
            now = self._scheduler.figures()
        return EngineFigures(
            scheduler=now,
            prefixes=self._prefixes.figures(),
            counts=self._counts.copy(),
            copy_s=self._prefixes.copy_s,
            kv_allocated_bytes=self._kv.allocated_bytes,
            kv_bytes_per_token=self._kv.bytes_per_token,
            kv_used_tokens=sum(self._lengths),
        )

    def check(self) -> None:
        """Raises RuntimeError when slots, queue and requests in flight do not add up."""
        with self._lock:
            self._scheduler.check()
            if len(self._live) != self._scheduler.num_in_flight:
                raise RuntimeError(f"{len(self._live)} sequences, {self._scheduler.num_in_flight} in flight")

    def _run(self) -> None:
        try:
            self._loop()
        except Exception:
            log.exception("the engine's loop ended")
        finally:
            with self._lock:
                self._closed = True
                left = [self._forget(task) for task in self._scheduler.end_all()]
            for sequence in left:
                self._counts.ended(sequence, Unavailable.code)
                sequence.send(Failure(Unavailable("the language model stopped", fix="try again in some seconds")))

    def _loop(self) -> None:
        while (iteration := self._next()) is not None:
            self._counts.iterations += 1
            for task in iteration.placed:
                self._live[task].note_placed()
            for move in iteration.moved:
                self._move(move)
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
        with self._lock:
            while not self._closed and not self._scheduler.has_work():
                self._changed.wait()
            if self._closed:
                return None
            iteration = self._scheduler.next(time.monotonic())
            ended = self._ended_by(iteration) if iteration.cancelled or iteration.refused else ()
        if ended:
            self._tell(ended)
        return iteration

    def _ended_by(self, iteration: Iteration) -> Sequence[Outcome]:
        outcomes: list[Outcome] = []
        for task in iteration.cancelled:
            sequence = self._forget(task)
            self._counts.ended(sequence, "cancelled")
            outcomes.append((sequence, sequence.ended("cancelled")))
        for task, error in iteration.refused:
            sequence = self._forget(task)
            self._counts.ended(sequence, error.code)
            outcomes.append((sequence, Failure(error)))
        return outcomes

    def _move(self, move: Move) -> None:
        source, slot = move.source, move.task.slot
        self._kv.move(source, slot, self._lengths[source])
        self._token_ids[slot], self._lengths[slot] = self._token_ids[source], self._lengths[source]
        self._lengths[source] = 0

    def _decode(self, tasks: tuple[Task, ...]) -> None:
        """One token for everyone who decodes."""
        batch = self._batch
        if batch is None or batch.tasks is not tasks:
            batch = self._batch = self._batch_of(tasks)
        begin_s = time.perf_counter()
        try:
            range_ = batch.range
            logits = self._decoder.step(range_.start, self._token_ids[range_], self._lengths[range_])
            highest = logits.argmax(axis=1).tolist()  # numpy takes NaN for the highest
        except Exception:
            log.exception("decode step failed")
            self._fail(batch.members)
            return
        self._counts.decode_s += time.perf_counter() - begin_s
        self._advance(batch.members, logits, highest)

    def _batch_of(self, tasks: tuple[Task, ...]) -> Batch:
        slots = [task.slot for task in tasks]
        first, last = min(slots), max(slots)
        return Batch(
            tasks=tasks,
            members=tuple((self._live[task], task.slot - first) for task in tasks),
            range=slice(first, last + 1),
        )

    def _prefill_media(self, chunk: Chunk) -> None:
        """A chunk that gives way to text which can have a slot: one that is due, or comes while it is computed.

        Not twice in a row: the picture gets on at least every other time.
        """
        sequence = self._live.get(chunk.task)
        if sequence is None:
            return  # it failed in this iteration
        with self._lock:
            self._gives_way = not sequence.gave_way
            sequence.gave_way = self._gives_way and self._scheduler.owes_text()
        if not sequence.gave_way:
            self._prefill(chunk)
        with self._lock:
            self._gives_way = False
            self._decoder.stay()

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
            self._fail(((sequence, 0),))
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
            self._advance(((sequence, 0),), logits[None], [int(logits.argmax())])
        self._prefixes.keep(sequence.prompt.links, task.slot, task.prefilled)

    def _restore(self, sequence: LiveSequence) -> None:
        """What the prefix cache has, at the start of each chunk: a donor may be only some chunks ahead."""
        task = sequence.task
        cached = self._prefixes.restore(sequence.prompt.links, task.slot, task.prefilled, task.prompt_tokens)
        if cached:
            sequence.note_cached(cached, self._counts.note_cached(cached))
            self._note_prefilled(task, cached)

    def _note_prefilled(self, task: Task, tokens: int) -> None:
        with self._lock:
            self._scheduler.prefilled(task, tokens)
        self._lengths[task.slot] = task.prefilled

    def _advance(self, members: Members, logits: Floats, highest: Sequence[int]) -> None:
        """The next token of each; `highest` holds the argmax of each row of logits (B, V)."""
        with self._lock:
            outcomes = [(sequence, self._next_event(sequence, logits, row, highest[row])) for sequence, row in members]
        self._tell(outcomes)

    def _next_event(self, sequence: LiveSequence, logits: Floats, row: int, highest: int) -> Event | Failure:
        """Tells the scheduler, too: a place is free before its client hears of it."""
        try:
            event = sequence.next_event(logits, row, highest)
        except ProteusError as error:
            return self._failed(sequence, error)
        except Exception:
            log.exception("a token could not be chosen or decoded")
            return self._failed(sequence, InternalError())
        task = sequence.task
        self._scheduler.generated(task)
        self._counts.output_tokens += 1
        if event.finish is None:
            self._token_ids[task.slot] = sequence.last_token
            self._lengths[task.slot] = task.prompt_tokens + sequence.num_tokens - 1
        else:
            self._end(sequence, event.finish.reason)
        return event

    def _fail(self, members: Members) -> None:
        with self._lock:
            outcomes = [(sequence, self._failed(sequence, InternalError())) for sequence, _ in members]
        self._tell(outcomes)

    def _failed(self, sequence: LiveSequence, error: ProteusError) -> Failure:
        self._end(sequence, error.code)
        return Failure(error)

    def _tell(self, outcomes: Sequence[Outcome]) -> None:
        """Whoever does not take it is ended; without the lock, for a client may ask the engine something."""
        for sequence, event in outcomes:
            if not sequence.send(event):
                with self._lock:
                    if sequence.task in self._live:
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
