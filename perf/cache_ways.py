"""Ways to see what another tenant has in a cache: through the door, and past it at the models behind.

Whoever names another's cache scope is believed: what stands in front of the server has to set it. These are the ways
of one who cannot.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import random
import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient

from perf.raw_request import Raw, send
from proteus.cache.key import scope_key
from proteus.client import ServerError

PATIENCE_S = 60.0
KINDS = {"uint8": "UINT8", "int32": "INT32", "float32": "FP32"}
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Given to the language model itself: ids with one picture among them."""

    ids: tuple[int, ...]
    span: tuple[int, int]  # start and length of the picture
    width: int  # of its rows
    media_key: bytes

    def inputs(self, scheduling: Mapping[str, Any]) -> list[InferInput]:
        rows = np.zeros((self.span[1], self.width), dtype=np.float32)
        return [
            tensor("input_ids", np.array(self.ids, dtype=np.int32)),
            tensor("visual_tokens", rows),
            tensor("visual_spans", np.array([self.span], dtype=np.int32)),
            tensor("media_keys", octets(self.media_key)[None]),
            tensor("sampling", octets(json.dumps({"max_tokens": 1}).encode())),
            tensor("scheduling", octets(json.dumps(scheduling).encode())),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """What the victim asked: it is in every cache, under a scope that nobody else can name."""

    scope: str
    tenant: str
    picture: bytes  # a JPEG file with a comment
    mark: bytes  # the comment
    question: str
    prompt: Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """By cache, as the answer tells them; all 0 for a request that was refused."""

    processor: int = 0
    encoder: int = 0
    prefix: int = 0  # tokens
    refused: bool = False

    @property
    def any(self) -> bool:
        return bool(self.processor or self.encoder or self.prefix)

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Hits:
        """Of the report of `chat`. What another request is just computing, and is shared, counts as a hit."""
        caches = report["caches"]
        return cls(
            processor=caches["processor"]["hits"],
            encoder=sum(source != "encoded" for source in report["pictures"]) or caches["encoder"]["hits"],
            prefix=report["usage"]["cached_tokens"] or caches["prefix"]["hits"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Who asks, and as whom."""

    url: str
    models: InferenceServerClient
    scope: str

    async def chat(self, question: str, picture: bytes, **more: Any) -> Hits:
        """One question about one picture."""
        content = [{"type": "image"}, {"type": "text", "text": question}]
        return await self.send(self.raw(content, **more), picture)

    def raw(self, content: Sequence[Mapping[str, Any]], **more: Any) -> Raw:
        messages = [{"role": "user", "content": content}]
        document = {"messages": messages, "max_tokens": 1, "cache_scope": self.scope, **more}
        return Raw(document=json.dumps(document).encode())

    async def send(self, raw: Raw, *pictures: bytes) -> Hits:
        try:
            return Hits.of(await send(self.url, replace(raw, pictures=pictures), PATIENCE_S))
        except ServerError as error:
            if error.code != "invalid_request":
                raise
            return Hits(refused=True)

    async def preprocess(self, picture: bytes, key: bytes, model: str) -> Hits:
        """Of the model itself, under any key for a scope."""
        inputs = [
            tensor("image_bytes", octets(picture)[None]),
            tensor("scope_key", octets(key)[None]),
            tensor("target_px", np.zeros((1, 2), dtype=np.int32)),
        ]
        result = await self.models.infer(model, inputs, client_timeout=PATIENCE_S)
        return Hits(processor=int(result.as_numpy("preprocess_saved_us").item() > 0))

    async def generate(self, prompt: Prompt, **scheduling: Any) -> Hits:
        """Of the language model itself."""
        inputs = prompt.inputs({"cache_scope": self.scope, **scheduling})

        async def requests() -> AsyncIterator[Mapping[str, Any]]:
            yield {"model_name": "llm", "inputs": inputs}

        cached = 0
        async for result, error in self.models.stream_infer(requests(), stream_timeout=PATIENCE_S):
            if error is not None:
                raise error
            told = result.as_numpy("cached_tokens")
            cached += 0 if told is None else int(told.item())
        return Hits(prefix=cached)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One try at one secret; `visitor` has a scope in which nothing was ever asked."""

    visitor: Visitor
    secret: Secret
    chance: random.Random
    number: int
    turn: int  # at this secret: the same way is never gone twice

    def ask(self, **more: Any) -> Awaitable[Hits]:
        """The victim's question about its picture."""
        return self.visitor.chat(self.secret.question, self.secret.picture, **more)

    def under_look_alike(self) -> Visitor:
        scopes = look_alikes(self.secret.scope)
        return replace(self.visitor, scope=scopes[self.turn % len(scopes)])


async def same_bytes(attack: Attack) -> Hits:
    return await attack.ask()


async def scope_like_it(attack: Attack) -> Hits:
    """Spelled so that somebody might take it for the victim's."""
    return await attack.under_look_alike().chat(attack.secret.question, attack.secret.picture)


async def victims_tenant(attack: Attack) -> Hits:
    """The tenant says whose share of the capacity it is, and opens nothing."""
    return await attack.ask(tenant=attack.chance.choice((attack.secret.tenant, attack.secret.scope)))


async def forged_parameter(attack: Attack) -> Hits:
    """Triton's own parameters of a request are in no key, so none of these may be taken."""
    name = attack.chance.choice(("cache_scope", "cache_salt", "scope_key", "tenant", "media_keys", "revision"))
    content = [{"type": "image"}, {"type": "text", "text": attack.secret.question}]
    raw = replace(attack.visitor.raw(content), parameters={name: attack.secret.scope})
    return await attack.visitor.send(raw, attack.secret.picture)


async def forged_field(attack: Attack) -> Hits:
    """Fields that a document does not have."""
    name = attack.chance.choice(("scope_key", "cache_salt", "media_keys", "cache_key", "Cache_Scope"))
    return await attack.ask(**{name: attack.secret.scope})


async def in_the_document(attack: Attack) -> Hits:
    """The same bytes in base64."""
    data = base64.b64encode(attack.secret.picture).decode()
    content = [{"type": "image", "data": data}, {"type": "text", "text": attack.secret.question}]
    return await attack.visitor.send(attack.visitor.raw(content))


async def several_answers(attack: Attack) -> Hits:
    return await attack.ask(n=2, temperature=1.0)


async def another_tier(attack: Attack) -> Hits:
    """The picture is small enough to be the same in each."""
    detail = attack.chance.choice(("low", "high"))
    content = [{"type": "image", "detail": detail}, {"type": "text", "text": attack.secret.question}]
    return await attack.visitor.send(attack.visitor.raw(content), attack.secret.picture)


async def same_shape(attack: Attack) -> Hits:
    """Other bytes, as many, of as many pixels."""
    other = attack.secret.picture.replace(attack.secret.mark, mark(f"shape {attack.number}"))
    return await attack.visitor.chat(attack.secret.question, other)


async def at_the_same_moment(attack: Attack) -> Hits:
    """While the victim's own request for a new picture is under way."""
    new = attack.secret.picture.replace(attack.secret.mark, mark(f"moment {attack.number}"))
    victim = replace(attack.visitor, scope=attack.secret.scope)
    asked = [who.chat(attack.secret.question, new) for who in (victim, attack.visitor)]
    return (await asyncio.gather(*asked))[1]


async def forged_scope_key(attack: Attack) -> Hits:
    """Past the door: keys that are nearly, or might have been, the right one."""
    keys = near_keys(attack.secret.scope, attack.chance)
    model = ("image_preprocess", "image_tokens")[attack.number % 2]
    return await attack.visitor.preprocess(attack.secret.picture, keys[attack.turn % len(keys)], model)


async def forged_media_key(attack: Attack) -> Hits:
    """Past the door: the victim's ids and the name of its picture."""
    return await attack.visitor.generate(attack.secret.prompt, tenant=attack.secret.tenant)


async def forged_prompt_scope(attack: Attack) -> Hits:
    """Past the door: the same under scopes that are spelled like its own."""
    return await attack.under_look_alike().generate(attack.secret.prompt)


WAYS: Sequence[Callable[[Attack], Awaitable[Hits]]] = (
    same_bytes,
    scope_like_it,
    victims_tenant,
    forged_parameter,
    forged_field,
    in_the_document,
    several_answers,
    another_tier,
    same_shape,
    at_the_same_moment,
    forged_scope_key,
    forged_media_key,
    forged_prompt_scope,
)


def mark(name: str) -> bytes:
    """A comment for a picture; every one is as long."""
    return hashlib.sha256(name.encode()).hexdigest().encode()


def look_alikes(scope: str) -> list[str]:
    """Other strings that a careless comparison takes for `scope`, which has letters of both cases and an accent."""
    found = [
        "",
        scope.upper(),
        scope.lower(),
        scope.swapcase(),
        f" {scope}",
        f"{scope} ",
        f"{scope}\n",
        f"{scope}\0",
        f"\0{scope}",
        f"{scope}\u200b",
        f"{scope}\ufeff",
        f"{scope}/",
        f"{scope}/../{scope}",
        scope[:-1],
        scope[1:],
        scope * 2,
        scope[::-1],
        scope.replace("o", "\u043e"),  # Cyrillic
        unicodedata.normalize("NFD", scope),
        unicodedata.normalize("NFKC", f"{scope}\u00aa"),
        f'{scope}", "tenant": "',
        f"%{scope}",
        f"*{scope[1:]}",
        "*",
        "null",
        repr(scope),
        scope.encode().hex(),
        hashlib.sha256(scope.encode()).hexdigest(),
        scope_key(scope).hex(),
        base64.b64encode(scope.encode()).decode(),
    ]
    return [one for one in dict.fromkeys(found) if one != scope]


def near_keys(scope: str, chance: random.Random) -> list[bytes]:
    """32 bytes each, none of them the key of the scope."""
    right = scope_key(scope)
    flipped = bytearray(right)
    flipped[chance.randrange(32)] ^= 1 << chance.randrange(8)
    found = [
        bytes(flipped),
        bytes(32),
        b"\xff" * 32,
        right[::-1],
        right[1:] + right[:1],
        chance.randbytes(32),
        hashlib.sha256(scope.encode()).digest(),
        hashlib.sha256(right).digest(),
        scope.encode().ljust(32, b"\0")[:32],
        bytes([right[0] ^ 1]) + right[1:],
        right[:31] + bytes([right[31] ^ 1]),
    ]
    return [key for key in found if key != right]


def tensor(name: str, array: Array) -> InferInput:
    made = InferInput(name, list(array.shape), KINDS[array.dtype.name])
    made.set_data_from_numpy(array)
    return made


def octets(data: bytes) -> Array:
    return np.frombuffer(data, dtype=np.uint8)
