"""Requests in flight: chunks of prompts beside one step of every answer, blocks of keys and values kept by salt."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from transformers import DynamicCache

from tensorrt_llm.inputs.multimodal import MultimodalParams, MultimodalRuntimeData
from tensorrt_llm.sampler import Logprob, TorchSampler
from tensorrt_llm.sampling_params import SamplingParams

IDS = itertools.count(1)


@dataclass
class CompletionOutput:
    index: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: Any = None


class RequestOutput:
    def __init__(self, token_ids: list[int], params: SamplingParams, executor: Executor, *, streaming: bool) -> None:
        self.request_id = next(IDS)
        self.prompt_token_ids, self.sampling_params, self.streaming = token_ids, params, streaming
        self.outputs = [CompletionOutput()]
        self.cached_tokens = 0
        self.finished = False
        self._executor = executor
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        self._async_steps: asyncio.Queue[Any] = asyncio.Queue()
        self._steps: queue.Queue[Any] = queue.Queue()

    def abort(self) -> None:
        self._executor.abort(self)

    def result(self, timeout: float | None = None) -> RequestOutput:
        while not self.finished:
            self._note(self._steps.get(timeout=timeout))
        return self

    def put(self, step: Any) -> None:
        """From the executor's thread."""
        if self._loop is None:
            self._steps.put(step)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._async_steps.put_nowait, step)

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._loop is None:
            raise RuntimeError("the event loop was not present when the request was made")
        if self.finished:
            raise StopAsyncIteration
        self._note(await self._async_steps.get())
        return self

    def _note(self, step: Any) -> None:
        if isinstance(step, Exception):
            self.finished = True
            raise step
        answer = self.outputs[0]
        answer.token_ids += step.token_ids
        answer.logprobs += step.logprobs
        self.cached_tokens = step.cached_tokens
        if step.finish_reason is not None:
            answer.finish_reason, self.finished = step.finish_reason, True


@dataclass(eq=False)
class WorkItem:
    result: RequestOutput
    media: MultimodalParams | None
    salt: str | None
    cache: DynamicCache = field(default_factory=DynamicCache)
    length: int = 0  # tokens in the cache
    cached: int = 0
    aborted: bool = False

    def __post_init__(self) -> None:
        self.prompt = self.result.prompt_token_ids
        self.answer: list[int] = []
        self.sampler = TorchSampler(self.result.sampling_params, num_prompt=len(self.prompt))

    @property
    def is_context(self) -> bool:
        return self.length < len(self.prompt)

    def block_key(self, end: int, size: int, *, hashes: bool) -> tuple[Any, ...]:
        """Of all that stands before `end`: its salt, its ids, and the parts of media in each block."""
        shown: list[Any] = []
        if hashes and self.media is not None and self.media.multimodal_input is not None:
            for digest, start, length in self.media.multimodal_input.spans:
                shown += [(tuple(digest), start, length)] if start < end else []
        return (self.salt, tuple(self.prompt[:end]), tuple(shown), size)


class Executor:
    """Its thread does everything. `hashes_media` False: as versions that know blocks by their ids alone."""

    hashes_media = True

    def __init__(self, network: Any, args: Any) -> None:
        self._network, self._args, self._kv = network, args, args.kv_cache_config
        self._lock = threading.Condition()
        self._waiting: list[WorkItem] = []
        self._active: list[WorkItem] = []
        self._blocks: dict[tuple[Any, ...], list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._is_shut_down = False
        self.most_active = 0
        self.chunks: list[int] = []  # sizes, for tests
        self._thread = threading.Thread(target=self._run, name="fake-executor", daemon=True)
        self._thread.start()

    def submit(self, item: WorkItem) -> None:
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("LLM is shutting down")
            self._waiting.append(item)
            self._lock.notify()

    def abort(self, result: RequestOutput) -> None:
        with self._lock:
            for item in (*self._waiting, *self._active):
                item.aborted |= item.result is result
            self._lock.notify()

    def shutdown(self) -> None:
        with self._lock:
            self._is_shut_down = True
            self._lock.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._take_in():
            batch = self._schedule()
            try:
                logits = self._forward(batch)
            except Exception as error:
                for item, _ in batch:
                    item.result.put(error)
                    self._active.remove(item)
                continue
            for (item, _), row in zip(batch, logits, strict=True):
                if not item.is_context:
                    self._respond(item, row)

    def _take_in(self) -> bool:
        with self._lock:
            while not self._waiting and not self._active and not self._is_shut_down:
                self._lock.wait()
            for item in [item for item in (*self._active, *self._waiting) if item.aborted]:
                (self._active if item in self._active else self._waiting).remove(item)
                self._say(item, [], [], "cancelled")
            while self._waiting and len(self._active) < self._args.max_batch_size:
                item = self._waiting.pop(0)
                self._reuse(item)
                self._active.append(item)
            self.most_active = max(self.most_active, len(self._active))
            return not self._is_shut_down

    def _schedule(self) -> list[tuple[WorkItem, int]]:
        """Contexts first, as there; each with the tokens that it computes."""
        steps = [(item, 1) for item in self._active if not item.is_context]
        budget, contexts = self._args.max_num_tokens - len(steps), []
        for item in self._active:
            if item.is_context and budget > 0:
                left, size = len(item.prompt) - item.length, self._kv.tokens_per_block
                due = left if left <= budget else budget // size * size
                if not due:
                    break
                contexts.append((item, due))
                self.chunks.append(due)
                budget -= due
        return contexts + steps

    @torch.inference_mode()
    def _forward(self, batch: list[tuple[WorkItem, int]]) -> list[torch.Tensor]:
        if not batch:
            return []
        ids: list[int] = []
        places: list[int] = []
        media: list[MultimodalParams] = []
        contexts = [item for item, _ in batch if item.is_context]
        for item, due in batch:
            ids += item.prompt[item.length : item.length + due] if item.is_context else item.answer[-1:]
            places += range(item.length, item.length + due)
            if item.is_context and item.media is not None:
                data = item.media.multimodal_data
                runtime = MultimodalRuntimeData(item.length, item.length + due, data["multimodal_embed_mask_cumsum"])
                media.append(MultimodalParams(item.media.multimodal_input, dict(data), runtime))
        metadata = SimpleNamespace(
            num_contexts=len(contexts),
            num_generations=len(batch) - len(contexts),
            seq_lens=[due for _, due in batch],
            caches=[item.cache for item, _ in batch],
        )
        more = {"multimodal_params": media} if media else {}
        logits = self._network.forward(
            attn_metadata=metadata, input_ids=torch.tensor(ids), position_ids=torch.tensor(places), **more
        )
        for item, due in batch:
            item.length += due
        return list(logits)

    def _respond(self, item: WorkItem, row: torch.Tensor) -> None:
        params = item.result.sampling_params
        token_id, logprobs = item.sampler.choose(row, item.prompt, item.answer)
        if not item.answer:
            self._keep(item)
        item.answer.append(token_id)
        reason = None
        if token_id == params.end_id or token_id in (params.stop_token_ids or ()):
            reason = "stop"
        elif len(item.answer) >= params.max_tokens:
            reason = "length"
        hidden = reason == "stop" and token_id != params.end_id and not params.include_stop_str_in_output
        self._say(item, [] if hidden else [token_id], [] if logprobs is None else [logprobs], reason)
        if reason is not None:
            self._active.remove(item)

    def _say(self, item: WorkItem, token_ids: list[int], logprobs: list[Any], reason: str | None) -> None:
        item.result.put(
            SimpleNamespace(token_ids=token_ids, logprobs=logprobs, finish_reason=reason, cached_tokens=item.cached)
        )

    def _reuse(self, item: WorkItem) -> None:
        size = self._kv.tokens_per_block
        for end in range((len(item.prompt) - 1) // size * size, 0, -size):
            held = self._blocks.get(item.block_key(end, size, hashes=self.hashes_media))
            if held is not None and self._kv.enable_block_reuse:
                for layer, (keys, values) in enumerate(held):
                    item.cache.update(keys.clone(), values.clone(), layer)
                item.length = item.cached = end
                return

    def _keep(self, item: WorkItem) -> None:
        size = self._kv.tokens_per_block
        for end in range(size, len(item.prompt) + 1, size):
            held = [(layer.keys[:, :, :end].clone(), layer.values[:, :, :end].clone()) for layer in item.cache.layers]
            self._blocks[item.block_key(end, size, hashes=self.hashes_media)] = held
