"""What the visitors of a soak do, each kind with its share of a hundred and the ways in which it may end."""

from __future__ import annotations

import asyncio
import base64
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from perf.raw_request import send
from perf.soak_bad import ANSWER, BAD
from perf.soak_pictures import Stock
from proteus.client import Answer, AsyncClient, ClientError, Drawing, Piece, ServerError

PATIENCE_S = 120.0  # what has not ended by then hangs
TENANTS = ("red", "green", "blue", "yellow")
ONCE = 0.1  # of the requests are from a tenant that never comes again
WORDS = ("red", "circle", "left", "of", "the", "square", "how", "many", "is", "there", "a", "what", "colour", "bar")
WISHES = tuple(
    f"a {colour} {shape} on a {ground} background"
    for colour in ("red", "blue", "green", "yellow")
    for shape in ("circle", "square", "ring")
    for ground in ("white", "grey")
)
SAMPLERS = ("euler", "ddim", "heun", "dpmpp_2m")
LONG_TOKENS = 200  # of an answer that is likely to go on when its client leaves
LEAVES_WITHIN_S = 0.4
LEFT, CANCELLED, FULL, LATE = "left", "cancelled", "queue_full", "deadline_exceeded"
BURST_CHOICES = 8
BAD_STRIDE = 12


class Unexpected(Exception):
    """A request ended, and in a way that it should not."""


@dataclass(slots=True)
class Tally:
    """What the clients saw."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)  # by kind and outcome
    choices: Counter[str] = field(default_factory=Counter)  # answers that came whole, by why they ended
    unseen_choices: int = 0  # answers asked for by those that did not stay to the end, or got an error
    images: int = 0
    bad: int = 0
    lost: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    def next_bad(self) -> str:
        """Every name by turns, those that are alike far from each other."""
        self.bad += 1
        return list(BAD)[self.bad * BAD_STRIDE % len(BAD)]

    def note(self, ended: Answer | Drawing) -> str:
        """Counts an answer, which is the outcome unless it was stopped."""
        if isinstance(ended, Drawing):
            self.images += len(ended.pictures)
        else:
            reasons = Counter(choice.finish_reason for choice in ended.choices)
            self.unseen_choices += reasons.pop(CANCELLED, 0)  # its last token may have crossed the stop
            self.choices.update(reasons)
        return CANCELLED if ended.finish_reason == CANCELLED else ANSWER


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request, and what it is made with."""

    client: AsyncClient
    stock: Stock
    chance: random.Random
    tally: Tally
    number: int

    def who(self) -> dict[str, str]:
        name = f"once {self.number}" if self.chance.random() < ONCE else self.chance.choice(TENANTS)
        return {"tenant": name, "cache_scope": name}

    def question(self, most_words: int = 24) -> str:
        return " ".join(self.chance.choices(WORDS, k=self.chance.randint(3, most_words)))

    def tokens(self) -> int:
        return self.chance.randint(1, 12)

    def pictures(self) -> list[bytes]:
        """None, one or several."""
        return [self.stock.fresh(self.chance) for _ in range(self.chance.choice((0, 1, 1, 2)))]

    async def ask(self, pictures: Sequence[bytes] = (), **options: Any) -> str:
        options = {"max_tokens": self.tokens(), "timeout_s": PATIENCE_S, **self.who(), **options}
        return self.tally.note(await self.client.ask(self.question(), pictures, **options))

    def drawing(self) -> dict[str, Any]:
        chance = self.chance
        return {
            "prompt": chance.choice(WISHES),
            "steps": chance.randint(1, 6),
            "sampler": chance.choice(SAMPLERS),
            "guidance": chance.choice((1.0, 2.0)),
            "size": chance.choice(("64x64", "64x64", "96x64", "96x96")),
            "format": chance.choice(("png", "jpeg", "webp")),
            "n": chance.randint(1, 2),
            "preview_every": chance.randint(0, 2),
            "preview_by": chance.choice(("linear", "decoder")),
            "timeout_s": PATIENCE_S,
            **self.who(),
        }


async def text(visit: Visit) -> str:
    return await visit.ask()


async def sampled(visit: Visit) -> str:
    """Several answers, by chance, with all that can be asked of the sampler."""
    chance = visit.chance
    return await visit.ask(
        visit.pictures(),
        n=chance.randint(1, 4),
        temperature=chance.uniform(0.2, 2.0),
        top_p=chance.uniform(0.5, 1.0),
        top_k=chance.choice((0, 1, 40)),
        min_p=chance.choice((0.0, 0.1)),
        seed=chance.randrange(2**31),
        logprobs=chance.random() < 0.5,
        frequency_penalty=chance.uniform(-2, 2),
        repetition_penalty=chance.uniform(0.8, 1.5),
        stop=["red", "the"],
    )


async def new_picture(visit: Visit) -> str:
    return await visit.ask([visit.stock.fresh(visit.chance)])


async def picture_seen_before(visit: Visit) -> str:
    return await visit.ask([visit.stock.again(visit.chance)])


async def several_pictures(visit: Visit) -> str:
    chance, stock = visit.chance, visit.stock
    some = [chance.choice((stock.fresh, stock.again))(chance) for _ in range(chance.choice((2, 2, 3, 4)))]
    return await visit.ask([*some, some[0]][:4])


async def large_picture(visit: Visit) -> str:
    return await visit.ask([visit.stock.large(visit.chance)], detail=visit.chance.choice(("low", "auto", "high")))


async def picture_in_the_document(visit: Visit) -> str:
    """In base64, as OpenAI's clients send it, in a conversation."""
    url = f"data:image/png;base64,{base64.b64encode(visit.stock.fresh(visit.chance)).decode()}"
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Say it in a word."},
        {"role": "user", "content": visit.question()},
        {"role": "assistant", "content": "red"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "?"}]},
    ]
    options: dict[str, Any] = {"max_tokens": visit.tokens(), "timeout_s": PATIENCE_S, **visit.who()}
    return visit.tally.note(await visit.client.chat(messages, **options))


async def patient(visit: Visit) -> str:
    return await visit.ask(visit.pictures(), latency_class="batch")


async def short_of_time(visit: Visit) -> str:
    return await visit.ask(visit.pictures(), deadline_ms=visit.chance.choice((1, 5, 20, 100)))


async def draws(visit: Visit) -> str:
    return visit.tally.note(await visit.client.draw(**visit.drawing()))


async def leaves_a_drawing(visit: Visit) -> str:
    return await left(visit, visit.client.draw(**{**visit.drawing(), "steps": 30}))


async def leaves_at_any_moment(visit: Visit) -> str:
    return await left(visit, long_answer(visit, visit.client))


async def leaves_in_the_answer(visit: Visit) -> str:
    pieces = visit.chance.randint(1, 20)
    options = long_options(visit)
    async with aclosing(visit.client.stream(visit.question(), visit.pictures(), **options)) as stream:
        async for item in stream:
            pieces -= isinstance(item, Piece)
            if isinstance(item, Answer):
                return visit.tally.note(item)
            if pieces <= 0:
                break
    visit.tally.unseen_choices += options["n"]
    return LEFT


async def breaks_the_connection(visit: Visit) -> str:
    async with AsyncClient(visit.client.url) as own:
        return await left(visit, long_answer(visit, own))


async def is_stopped(visit: Visit) -> str:
    """By its id, from another connection, at any moment."""
    name = f"soak {visit.number}"
    options = {**long_options(visit), "request_id": name, "tenant": "stopped", "cache_scope": "stopped"}
    asked = asyncio.create_task(visit.client.ask(visit.question(), visit.pictures(), **options))
    try:
        await asyncio.wait([asked], timeout=visit.chance.uniform(0, LEAVES_WITHIN_S))
        while not asked.done() and not await visit.client.stop(
            name, tenant="stopped", cache_scope="stopped", timeout_s=PATIENCE_S
        ):
            await asyncio.sleep(0)
    except ClientError:
        await asyncio.gather(asked, return_exceptions=True)
        raise
    return visit.tally.note(await asked)


async def bad(visit: Visit) -> str:
    """One of the bad requests after the other; the code is the outcome."""
    name = visit.tally.next_bad()
    one = BAD[name]
    try:
        await send(visit.client.url, one.make(visit.stock, visit.chance), PATIENCE_S)
        outcome = ANSWER
    except ServerError as error:
        outcome = error.code
    if outcome == ANSWER:
        visit.tally.unseen_choices += 1
    if outcome not in one.outcomes:
        raise Unexpected(f"{name}: {outcome}")
    return outcome


async def one_of_a_crowd(visit: Visit) -> str:
    """Many of these at once are more than the queue holds."""
    return await visit.ask(latency_class="batch", n=BURST_CHOICES, max_tokens=2, temperature=1.0, seed=visit.number)


def long_options(visit: Visit) -> dict[str, Any]:
    return {
        "max_tokens": LONG_TOKENS,
        "min_tokens": LONG_TOKENS,
        "temperature": 2.0,
        "seed": visit.number,
        "n": visit.chance.choice((1, 1, 1, 3)),
        "timeout_s": PATIENCE_S,
        **visit.who(),
    }


async def long_answer(visit: Visit, client: AsyncClient) -> Answer:
    options = long_options(visit)
    try:
        return await client.ask(visit.question(), visit.pictures(), **options)
    except asyncio.CancelledError:
        visit.tally.unseen_choices += options["n"]
        raise


async def left(visit: Visit, asked: Awaitable[Answer | Drawing]) -> str:
    """Cancelled at any moment, unless the answer comes first."""
    task = asyncio.ensure_future(asked)
    await asyncio.wait([task], timeout=visit.chance.uniform(0, LEAVES_WITHIN_S))
    task.cancel()
    try:
        return visit.tally.note(await task)
    except asyncio.CancelledError:
        return LEFT


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    act: Callable[[Visit], Awaitable[str]]
    share: int  # of a hundred
    outcomes: frozenset[str] = frozenset({ANSWER})

    @property
    def name(self) -> str:
        return self.act.__name__


def kind(act: Callable[[Visit], Awaitable[str]], share: int, *outcomes: str) -> Kind:
    return Kind(act=act, share=share, outcomes=frozenset(outcomes or (ANSWER,)))


KINDS = (
    kind(text, 23),
    kind(sampled, 6),
    kind(new_picture, 14),
    kind(picture_seen_before, 12),
    kind(several_pictures, 8),
    kind(large_picture, 1),
    kind(picture_in_the_document, 3),
    kind(patient, 3, ANSWER, FULL),  # in the queue of the crowd
    kind(short_of_time, 3, ANSWER, LATE),
    kind(draws, 2),
    kind(leaves_a_drawing, 1, ANSWER, LEFT),
    kind(leaves_at_any_moment, 8, ANSWER, LEFT),
    kind(leaves_in_the_answer, 3, ANSWER, LEFT),
    kind(breaks_the_connection, 1, ANSWER, LEFT),
    kind(is_stopped, 4, ANSWER, CANCELLED),
    Kind(act=bad, share=8, outcomes=frozenset(code for one in BAD.values() for code in one.outcomes)),
)
CROWD = kind(one_of_a_crowd, 0, ANSWER, FULL)


def deck(hundred: int) -> list[Kind]:
    """The kinds of one hundred requests after the other: the same shares in each, in another order."""
    kinds = [kind for kind in KINDS for _ in range(kind.share)]
    random.Random(hundred).shuffle(kinds)
    return kinds
