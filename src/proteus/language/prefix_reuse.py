"""The prefix cache at work: what a slot gets from it and what it gives, and the time that saved.

Used by the engine's thread, but for `chain_of`.
"""

from __future__ import annotations

import time

from proteus.language.generation import GenerationRequest
from proteus.language.kv_slots import KvSlots
from proteus.language.prefix import Chain, chain, keys_of_spans, root
from proteus.language.prefix_cache import PrefixCache, PrefixFigures
from proteus.language.task import LEAST_CHUNK
from proteus.limits import PrefixCache as PrefixLimits


class PrefixReuse:
    """`revision` names the weights: what was computed with others is never found."""

    def __init__(self, limits: PrefixLimits, kv: KvSlots, *, revision: str) -> None:
        self._block_tokens = limits.block_tokens
        self._kv, self._revision = kv, revision
        self._cache = PrefixCache(limits, block_shape=kv.block_shape(limits.block_tokens), clock_s=time.monotonic)
        self.copy_s = 0.0  # since the start, for both directions

    def chain_of(self, request: GenerationRequest) -> Chain:
        """Links of the prompt's full blocks; none where the cache is off. For any thread."""
        if not self._cache.is_on:
            return ()
        return chain(
            root=root(cache_scope=request.scheduling.cache_scope, revision=self._revision, adapter=""),
            input_ids=request.input_ids,
            visual_spans=request.visual_spans,
            media_keys=request.media_keys or keys_of_spans(request.visual_tokens, request.visual_spans),
            block_tokens=self._block_tokens,
        )

    def restore(self, links: Chain, slot: int, start: int, num_prompt: int) -> int:
        """Copy what is held of a prompt from place `start` on into its slot; the number of tokens.

        The last tokens are left, since what follows the prompt is computed from them; as many as a chunk has at least.
        """
        if not links:
            return 0
        begin_s = time.perf_counter()
        at, first = start, start // self._block_tokens
        for number, block in enumerate(self._cache.find(links, first), first):
            block_start = number * self._block_tokens
            stop = min(block_start + self._block_tokens, num_prompt - LEAST_CHUNK)
            if stop <= at:
                break
            self._kv.write(slot, at, block[:, :, :, at - block_start : stop - block_start])
            at = stop
        self.copy_s += time.perf_counter() - begin_s
        return at - start

    def keep(self, links: Chain, slot: int, num_tokens: int) -> None:
        """Hold the full blocks among the first `num_tokens` of a prompt that is in a slot."""
        if not links:
            return
        begin_s = time.perf_counter()
        size = self._block_tokens
        self._cache.keep(
            links, num_tokens // size, lambda number: self._kv.view(slot, number * size, (number + 1) * size)
        )
        self.copy_s += time.perf_counter() - begin_s

    def count(self, *, prompt_tokens: int, cached_tokens: int) -> None:
        """Note a prompt that is whole."""
        if self._cache.is_on:
            self._cache.count(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)

    def figures(self) -> PrefixFigures:
        return self._cache.figures()

    def check(self) -> None:
        """Raises RuntimeError where the cache's books do not add up."""
        self._cache.check()
