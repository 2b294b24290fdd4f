"""The engine of the language model on TensorRT-LLM's LLM API.

Who waits, who is next, deadlines, stop strings and text are ours, as with every engine; TensorRT-LLM is given as many
requests as have a slot. One thread with an event loop does all but `submit` and `cancel`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from proteus.errors import InternalError, Unavailable
from proteus.language.answer import Answer
from proteus.language.counts import Counts
from proteus.language.figures import EngineFigures
from proteus.language.generation import Emit, Event, Failure, GenerationRequest, PromptLimits, TokenLogprobs
from proteus.language.onnx_decoder import DecoderManifest
from proteus.language.placement import Placement
from proteus.language.prefix_cache import PrefixFigures
from proteus.language.sampling import check_vocabulary
from proteus.language.stream import Detokenizer
from proteus.language.task import Task
from proteus.language.tensorrt_llm_options import open_llm
from proteus.language.tensorrt_llm_prompt import cache_salt, llm_inputs, media_keys
from proteus.language.tensorrt_llm_sampling import sampling_params, token_logprobs
from proteus.language.tensorrt_llm_versions import Api
from proteus.limits import Llm
from proteus.limits_gpu import GpuLlm

log = logging.getLogger(__name__)
LOOK_S = 0.02  # between two looks at deadlines, while anybody waits
ABORTED_S = 60.0  # after which the last answer to an aborted request is no more waited for
MAX_FAILURES = 8  # of requests, one after the other: then it is not the requests, and the process is to start anew


class Asked(Answer):
    """A request, with what TensorRT-LLM is asked; the rows of its pictures are let go once they are handed on."""

    def __init__(self, request: GenerationRequest, emit: Emit, *, api: Api, revision: str, **parts: Any) -> None:
        super().__init__(request, emit, **parts)
        keys = media_keys(request)
        self.inputs: dict[str, Any] | None = llm_inputs(request, keys)
        self.salt = cache_salt(request, keys, revision=revision)
        limits: PromptLimits = parts["limits"]
        self.params = sampling_params(
            api,
            request.sampling,
            stop_ids=self.stop_ids,
            max_tokens=self.task.max_tokens,
            num_prompt=self.task.prompt_tokens,
            vocab_size=limits.vocab_size,
        )
        self.num_top = request.sampling.top_logprobs
        self.wants_logprobs = request.sampling.logprobs
        self.result: Any = None  # of `generate_async`
        self.follower: asyncio.Task[None] | None = None


class TensorRtLlmEngine:
    """`folder` holds export.json; TensorRT-LLM reads the weights from `checkpoint` itself."""

    def __init__(
        self, api: Api, folder: Path, tokenizer: Tokenizer, llm: Llm, gpu: GpuLlm, *, checkpoint: Path, revision: str
    ) -> None:
        manifest = DecoderManifest.load(folder)
        manifest.check_context(llm)
        self._api, self._revision = api, revision
        self._limits = PromptLimits(
            vocab_size=manifest.vocab_size,
            hidden_size=manifest.hidden_size,
            context_tokens=llm.context_tokens,
            image_token_id=manifest.image_token_id,
        )
        self._eos_token_ids = frozenset(manifest.eos_token_ids)
        self._detokenizer = Detokenizer(tokenizer)
        self._llm = open_llm(api, checkpoint=checkpoint, llm=llm, gpu=gpu)
        self._counts = Counts()
        self._failures = 0  # since the last token
        self._prompts = self._hits = 0  # whose first token came; of which some had cached tokens
        self._lock = threading.RLock()  # guards all below
        self._placement = Placement(llm.schedule, slots=llm.slots, max_queue=llm.max_queue)
        self._live: dict[Task, Asked] = {}
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._followed = set[asyncio.Task[None]]()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest, emit: Emit) -> None:
        """As in Engine."""
        self._limits.check(request)
        check_vocabulary(request.sampling, self._limits.vocab_size)
        asked = Asked(
            request,
            emit,
            api=self._api,
            revision=self._revision,
            detokenizer=self._detokenizer,
            eos_token_ids=self._eos_token_ids,
            limits=self._limits,
        )
        with self._lock:
            if self._closed:
                raise Unavailable("the language model is stopping", fix="try again in some seconds")
            self._placement.submit(asked.task, time.monotonic())
            self._live[asked.task] = asked
            self._wake()

    def cancel(self, request_key: bytes) -> None:
        """As in Engine."""
        with self._lock:
            self._placement.cancel(request_key)
            if not self._closed:
                self._wake()

    def close(self) -> None:
        """As in Engine; returns when the thread has ended."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def num_in_flight(self) -> int:
        """Requests that decode, prefill or wait."""
        with self._lock:
            return self._placement.num_in_flight

    @property
    def num_iterations(self) -> int:
        """Answers of TensorRT-LLM since the start: as long as something is in flight, it grows."""
        return self._counts.iterations

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def figures(self) -> EngineFigures:
        """For metrics, at this moment; memory and times of TensorRT-LLM's own are zero here."""
        with self._lock:
            now = self._placement.figures()
        counts = self._counts.copy()
        prefixes = PrefixFigures(
            lookups=self._prompts,
            hits=self._hits,
            looked_up_tokens=counts.prefilled_tokens + counts.cached_tokens,
            hit_tokens=counts.cached_tokens,
            held_blocks=0,
            held_bytes=0,
            capacity_bytes=0,
            kept_blocks=0,
            evicted_for_room=0,
            evicted_by_age=0,
        )
        return EngineFigures(
            scheduler=now,
            prefixes=prefixes,
            counts=counts,
            copy_s=0.0,
            kv_allocated_bytes=0,
            kv_bytes_per_token=0,
            kv_used_tokens=0,
        )

    def check(self) -> None:
        """Raises RuntimeError when slots, queue and requests in flight do not add up."""
        with self._lock:
            self._placement.check()
            if len(self._live) != self._placement.num_in_flight:
                raise RuntimeError(f"{len(self._live)} requests, {self._placement.num_in_flight} in flight")

    def _wake(self) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:
            log.exception("the engine's loop ended")
        finally:
            with self._lock:
                self._closed = True
                left = [self._live.pop(task) for task in self._placement.end_all()]
            self._tell([(asked, Failure(_stopped())) for asked in left], outcome=Unavailable.code)
            self._shut_down()

    def _shut_down(self) -> None:
        try:
            self._llm.shutdown()
        except Exception:
            log.exception("TensorRT-LLM did not shut down")
        for follower in self._followed:
            follower.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._followed, return_exceptions=True))
        self._loop.close()

    async def _serve(self) -> None:
        while not self._closed:
            if self._failures >= MAX_FAILURES:
                raise RuntimeError(f"TensorRT-LLM failed {self._failures} requests in a row")
            self._changed.clear()
            some_wait = self._turn()
            try:
                await asyncio.wait_for(self._changed.wait(), LOOK_S if some_wait else None)
            except TimeoutError:
                continue

    def _turn(self) -> bool:
        """Ends who is to end and hands on who has a slot; whether anybody still waits."""
        now_s = time.monotonic()
        with self._lock:
            cancelled = [self._live.pop(task) for task in self._placement.take_cancelled()]
            refused = [(self._live.pop(task), error) for task, error in self._placement.take_refused(now_s)]
            placed = [self._live[task] for task in self._placement.place(now_s)]
            refused += [(self._live.pop(task), error) for task, error in self._placement.take_unplaceable()]
            some_wait = self._placement.num_waiting > 0
        for asked in cancelled:
            _abort(asked)
        self._tell([(asked, asked.ended("cancelled")) for asked in cancelled], outcome="cancelled")
        for asked, error in refused:
            self._tell([(asked, Failure(error))], outcome=error.code)
        for asked in placed:
            asked.note_placed()
            asked.follower = follower = self._loop.create_task(self._follow(asked))
            self._followed.add(follower)
            follower.add_done_callback(self._followed.discard)
        return some_wait

    async def _follow(self, asked: Asked) -> None:
        """One request through TensorRT-LLM: its answers come until the last, also when nobody wants them any more."""
        if asked.task not in self._live:
            return  # cancelled since it got its slot
        try:
            inputs, asked.inputs = asked.inputs, None
            asked.result = self._llm.generate_async(
                inputs, sampling_params=asked.params, streaming=True, cache_salt=asked.salt
            )
            del inputs
            async for output in asked.result:
                self._counts.iterations += 1
                self._failures = 0
                self._take(asked, output)
            self._end_unfinished(asked)
        except Exception:
            log.exception("a request failed in TensorRT-LLM")
            self._failures += 1
            _abort(asked)
            self._fail(asked)

    def _take(self, asked: Asked, output: Any) -> None:
        """The tokens that are new in `output`, one event each."""
        if asked.task not in self._live:
            return  # it has ended, and is being stopped
        answer = output.outputs[0]
        for place in range(asked.num_tokens, len(answer.token_ids)):
            if place == 0:
                self._note_prefilled(asked, output)
            token_id = answer.token_ids[place]
            logprobs: tuple[TokenLogprobs, ...] = ()
            if asked.wants_logprobs:
                logprobs = (token_logprobs(token_id, answer.logprobs[place], asked.num_top),)
            event = asked.say(token_id, logprobs)
            with self._lock:
                self._placement.generated(asked.task)
            self._counts.output_tokens += 1
            if event.finish is not None:
                self._end(asked, event.finish.reason)
                _abort(asked)  # of a stop string TensorRT-LLM knows nothing
            if not asked.send(event) and event.finish is None:
                self._end(asked, "cancelled")
                _abort(asked)
            if asked.task not in self._live:
                return

    def _note_prefilled(self, asked: Asked, output: Any) -> None:
        cached = min(int(output.cached_tokens or 0), asked.task.prompt_tokens)
        asked.note_cached(cached, 0.0)
        self._counts.cached_tokens += cached
        self._counts.prefilled_tokens += asked.task.prompt_tokens - cached
        self._prompts, self._hits = self._prompts + 1, self._hits + (cached > 0)
        with self._lock:
            self._placement.prefilled(asked.task, asked.task.prompt_tokens)

    def _end_unfinished(self, asked: Asked) -> None:
        """No more comes, and no token told so: an end-of-answer token that TensorRT-LLM keeps to itself, or worse."""
        if asked.task not in self._live:
            return
        reason = asked.result.outputs[0].finish_reason
        if reason not in ("stop", "length"):
            log.error("TensorRT-LLM ended a request with %r", reason)
            self._fail(asked)
            return
        event = asked.ended(reason)
        self._end(asked, reason)
        asked.send(event)

    def _fail(self, asked: Asked) -> None:
        if asked.task in self._live:
            self._end(asked, InternalError.code)
            asked.send(Failure(InternalError()))

    def _end(self, asked: Asked, outcome: str) -> None:
        """A place is free before its client hears of it."""
        with self._lock:
            self._placement.end(asked.task)
            del self._live[asked.task]
            self._counts.ended(asked, outcome)
        self._changed.set()

    def _tell(self, outcomes: Sequence[tuple[Asked, Event | Failure]], *, outcome: str) -> None:
        for asked, event in outcomes:
            self._counts.ended(asked, outcome)
            asked.send(event)


def _abort(asked: Asked) -> None:
    """Raises nothing: whoever has ended is still to be told so. A request that waits in TensorRT-LLM may be dropped
    there without a word, and would be followed for ever.
    """
    if asked.result is None or asked.result.finished:
        return
    try:
        asked.result.abort()
    except Exception:
        log.exception("TensorRT-LLM did not abort a request")
    if asked.follower is not None:
        asked.follower.get_loop().call_later(ABORTED_S, asked.follower.cancel)


def _stopped() -> Unavailable:
    return Unavailable("the language model stopped", fix="try again in some seconds")
