"""Texts to conditions: each text once at a time, by the text encoder behind Triton's response cache."""

from __future__ import annotations

import secrets
from dataclasses import replace

import numpy as np

from proteus.backend.fleet import Context, DrawFleet
from proteus.cache.key import TextKeyFields, text_key
from proteus.cache.single_flight import SingleFlight
from proteus.door.draw_plan import DrawPlan
from proteus.door.draw_text import TextIds
from proteus.door.together import together
from proteus.errors import BrokenModel, InternalError, InvalidRequest
from proteus.generation.task import Condition


class Conditions:
    """For one event loop. Prompt and negative prompt have keys of their own: the empty negative is everybody's."""

    def __init__(self, fleet: DrawFleet) -> None:
        self._fleet = fleet
        self._encoding = SingleFlight[bytes, Condition](shared_errors=(InvalidRequest,))

    async def of(self, plan: DrawPlan, context: Context) -> tuple[Condition, Condition | None]:
        """Of the prompt, and of the negative prompt where the plan has that branch."""
        texts = [plan.prompt] if plan.negative is None else [plan.prompt, plan.negative]
        scope, revision = plan.request.cache_scope, plan.revision
        prompt, *negative = await together(self._shared(text, scope, revision, context) for text in texts)
        return prompt, negative[0] if negative else None

    async def _shared(self, text: TextIds, cache_scope: str, revision: str, context: Context) -> Condition:
        fields = TextKeyFields(cache_scope=cache_scope, revision=revision, ids=text.as_bytes())
        landing = await self._encoding.run(text_key(fields), lambda: self._checked(text, fields, context))
        return landing.value

    async def _checked(self, text: TextIds, fields: TextKeyFields, context: Context) -> Condition:
        """An answer made for another key is a collision of the cache, and asked for anew."""
        for salt in (b"", secrets.token_bytes(16)):
            key = text_key(replace(fields, salt=salt))
            encoded = await self._fleet.condition(text.arrays, key, context)
            if encoded.key_echo == key:
                return _finite(encoded.condition)
        raise InternalError


def _finite(condition: Condition) -> Condition:
    """Raises BrokenModel: no step would make a picture of what is not finite."""
    arrays = (condition.states, condition.pooled) if condition.pooled is not None else (condition.states,)
    if not all(np.isfinite(array).all() for array in arrays):
        raise BrokenModel("the text encoder's output is not finite", fix="change the prompt")
    return condition
