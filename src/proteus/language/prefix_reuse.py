"""What an engine does with prefixes: it names prompts, takes known blocks into slots, and keeps what was computed.

Joins the chain of digests (prefix.py), the store (prefix_cache.py) and the slots (kv_slots.py). `digests` may be called
from any thread, the rest from the engine's only.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from proteus.language.generation import GenerationRequest
from proteus.language.kv_slots import KvSlots
from proteus.language.prefix import chain, media_key_of_rows, root
from proteus.language.prefix_cache import PrefixCache, PrefixFigures
from proteus.limits import PrefixCache as PrefixLimits

# Of every prompt, for the logits behind it. Not one: a chunk of a single token takes another kernel in ONNX Runtime,
# whose last bits differ, and a cached prompt must go on exactly like one that was computed.
LEAST_COMPUTED_TOKENS = 2


class PrefixReuse:
    """`revision` names the model's weights, `adapter` what is laid over them; a change of either forgets all."""

    def __init__(
        self,
        limits: PrefixLimits,
        slots: KvSlots,
        *,
        revision: str,
        adapter: str = "",
        clock_s: Callable[[], float] = monotonic,
    ) -> None:
        self._block_tokens = limits.block_tokens
        self._slots = slots
        self._revision, self._adapter = revision, adapter
        self._cache = PrefixCache(limits, block_shape=slots.block_shape(limits.block_tokens), clock_s=clock_s)

    def digests(self, request: GenerationRequest) -> tuple[bytes, ...]:
        """Of the full blocks of a prompt that `PromptLimits.check` let pass; none where the cache is off."""
        if not self._cache.is_on:
            return ()
        return chain(
            root=root(cache_scope=request.scheduling.cache_scope, revision=self._revision, adapter=self._adapter),
            input_ids=request.input_ids,
            visual_spans=request.visual_spans,
            media_keys=request.media_keys or _keys_of_rows(request),
            block_tokens=self._block_tokens,
        )

    def restore(self, slot: int, digests: tuple[bytes, ...], *, prompt_tokens: int, prefilled: int) -> int:
        """Copy what is known of a prompt into its slot, which holds `prefilled` tokens of it; how many it holds then.

        Worth asking before every chunk: another prompt may have come by meanwhile.
        """
        first = prefilled // self._block_tokens  # a block that is begun is written whole: its bits are the same
        reusable = (prompt_tokens - 1) // self._block_tokens
        blocks = self._cache.find(digests[:reusable], first)
        for number, block in enumerate(blocks, first):
            self._slots.write(slot, number * self._block_tokens, block)
        known = (first + len(blocks)) * self._block_tokens
        return max(prefilled, min(known, prompt_tokens - LEAST_COMPUTED_TOKENS))

    def keep(self, slot: int, digests: tuple[bytes, ...], *, prefilled: int) -> None:
        """Keep the full blocks of a prompt that a slot holds `prefilled` tokens of, those that are not kept yet."""
        size = self._block_tokens
        num_blocks = min(prefilled // size, len(digests))
        self._cache.keep(digests, num_blocks, lambda number: self._slots.view(slot, number * size, (number + 1) * size))

    def count(self, *, prompt_tokens: int, cached_tokens: int) -> None:
        """Note a prompt once it is whole, and how much of it `restore` gave."""
        self._cache.count(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)

    def clear(self) -> None:
        """Forget everything that is kept."""
        self._cache.clear()

    def figures(self) -> PrefixFigures:
        return self._cache.figures()

    def check(self) -> None:
        """Raises RuntimeError when the books of the cache do not add up."""
        self._cache.check()


def _keys_of_rows(request: GenerationRequest) -> tuple[bytes, ...]:
    rows = request.visual_tokens
    if rows is None:
        return ()
    keys, row = [], 0
    for _, length in request.visual_spans:
        keys.append(media_key_of_rows(rows[row : row + length]))
        row += length
    return tuple(keys)
