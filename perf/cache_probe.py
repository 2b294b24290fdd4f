"""Ten thousand ways to see what another tenant has in a cache; how many found anything, and whether time tells it.

    python -m perf.cache_probe [--tries 10000] [--pairs 1000] [--json]

Victims ask about their pictures, each under a scope of its own; an attacker tries every way of perf/cache_ways.py at
each of them. A hit shows in the answer, or else in the server's counters. Victims ask again meanwhile, and hit: the
entries are there. `timing` is how often a picture that a victim has asked about is answered sooner than a new one, the
attacker asking about both: one half where time tells nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from tritonclient.grpc.aio import InferenceServerClient

from perf.arguments import at_least
from perf.cache_ways import WAYS, Attack, Hits, Prompt, Secret, Visitor, mark
from perf.records import Record, versions, write
from perf.soak_books import of, read_when
from perf.soak_pictures import encoded, marked
from proteus.cache.key import scope_key
from proteus.deployment import Deployment
from proteus.launcher import Server
from proteus.manifest import Manifest

DEPLOYMENT = Path("deployments/demo.toml")
SECRETS = 32
AT_ONCE = 8
CONTROL_EVERY = 200  # tries
WORDS = ("red", "circle", "left", "of", "the", "square", "how", "many", "is", "there", "a", "what", "colour", "bar")
QUESTION_WORDS, BEFORE, AFTER = 40, 8, 60  # tokens of a direct prompt before and after its picture
PICTURE_PX = (200, 160)
TIMED_PX = (1200, 900)  # the larger, the more a cache would save
CACHES = ("processor", "encoder", "prefix")


@dataclass(slots=True)
class Findings:
    """What the attacker saw."""

    tries: Counter[str] = field(default_factory=Counter)  # by way
    refused: Counter[str] = field(default_factory=Counter)
    seen: list[str] = field(default_factory=list)  # hits on what is another's
    control: Counter[str] = field(default_factory=Counter)  # hits of the victims on what is their own
    missed: list[str] = field(default_factory=list)  # their own that they did not find
    miscounted: list[str] = field(default_factory=list)  # by the server: hits that nobody was told of

    @property
    def complaints(self) -> list[str]:
        return [*self.seen, *self.missed, *self.miscounted]


def secret_of(number: int, manifest: Manifest, placeholder: int) -> Secret:
    """The same in every run but for its scope."""
    chance, visual_tokens = random.Random(number), manifest.visual_tokens
    words = range(placeholder + 1, manifest.vocab_size)
    ids = [*chance.choices(words, k=BEFORE), *[placeholder] * visual_tokens, *chance.choices(words, k=AFTER)]
    own_mark = mark(f"secret {number}")
    return Secret(
        scope=f"Scopé {number} of a tenant, {time.monotonic_ns()}",
        tenant=f"victim {number}",
        picture=marked(encoded(number, PICTURE_PX, "JPEG"), own_mark),
        mark=own_mark,
        question=" ".join(chance.choices(WORDS, k=QUESTION_WORDS)),
        prompt=Prompt(
            ids=tuple(ids), span=(BEFORE, visual_tokens), width=manifest.hidden_size, media_key=chance.randbytes(32)
        ),
    )


class Probe:
    """Victims and an attacker at one server, which nobody else uses."""

    def __init__(self, server: Server, models: InferenceServerClient, deployment: Deployment) -> None:
        self.findings = Findings()
        self._server = server
        self._instances = deployment.stages.image_preprocess.instances
        manifest = Manifest.load(deployment.repository_path)
        placeholder = json.loads((deployment.checkpoint_path / "config.json").read_text())["image_token_index"]
        self._secrets = [secret_of(number, manifest, placeholder) for number in range(SECRETS)]
        self._timed = encoded(0, TIMED_PX, "JPEG")
        self._nobody = Visitor(url=server.ports.grpc_url, models=models, scope="")

    async def try_all(self, tries: int, done: Callable[[], None]) -> None:
        """Every way at every secret by turns."""
        for secret in self._secrets:
            await self._remember(secret)
        before = self._hits()
        self.findings.control.clear()
        for begin in range(0, tries, CONTROL_EVERY):
            await self._try_some(range(begin, min(tries, begin + CONTROL_EVERY)), done)
            await self._control(self._secrets[begin // CONTROL_EVERY % SECRETS])
        after = self._hits()
        self.findings.miscounted = list(
            miscounted(self.findings, {name: after[name] - before[name] for name in CACHES})
        )

    async def _try_some(self, numbers: Sequence[int], done: Callable[[], None]) -> None:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with gate:
                await self._try(number)
                done()

        await asyncio.gather(*map(one, numbers))

    async def _try(self, number: int) -> None:
        way = WAYS[number % len(WAYS)]
        turn, which = divmod(number // len(WAYS), SECRETS)
        attack = Attack(
            visitor=replace(self._nobody, scope=f"attacker {number}"),
            secret=self._secrets[which],
            chance=random.Random(number),
            number=number,
            turn=turn,
        )
        hits = await way(attack)
        self.findings.tries[way.__name__] += 1
        self.findings.refused[way.__name__] += hits.refused
        if hits.any:
            self.findings.seen.append(f"try {number}, {way.__name__}: {hits}")

    async def _remember(self, secret: Secret) -> None:
        """The victim asks, which puts its own into every cache."""
        victim = replace(self._nobody, scope=secret.scope)
        await victim.chat(secret.question, secret.picture, tenant=secret.tenant)
        await victim.generate(secret.prompt)

    async def _control(self, secret: Secret) -> None:
        """The victim asks again, and finds what is its own: pixels once every instance that keeps them has them."""
        victim = replace(self._nobody, scope=secret.scope)
        for left in reversed(range(self._instances + 1)):
            asked = (
                ("chat", await victim.chat(secret.question, secret.picture, tenant=secret.tenant)),
                ("llm", await victim.generate(secret.prompt)),
                ("pixels", await victim.preprocess(secret.picture, scope_key(secret.scope), "image_preprocess")),
            )
            for name, hits in asked:
                self._count(hits)
                if not left and not hits.any:
                    self.findings.missed.append(f"{secret.tenant}, {name}")

    def _count(self, hits: Hits) -> None:
        for cache in CACHES:
            self.findings.control[cache] += getattr(hits, cache) > 0

    def _hits(self) -> dict[str, float]:
        now = read_when(self._server, lambda _: True)
        return {cache: of(now, f"proteus_{cache}_cache_hits_total") for cache in CACHES}

    async def is_sooner(self, number: int, *, own: bool = False) -> bool:
        """Whether a picture that a victim asked about is answered sooner than a new one; `own`: to the victim."""
        known, new = (marked(self._timed, mark(f"{name} {number} {own}")) for name in ("known", "new"))
        victim = replace(self._nobody, scope=f"timed victim {number}")
        question = self._secrets[number % SECRETS].question
        await victim.chat(question, known)
        seconds: dict[bytes, float] = {}
        # By lot: in turns, two instances that take turns as well would each get the pictures of one kind.
        for picture in random.Random(f"order {number} {own}").sample((known, new), k=2):
            asker = victim if own else replace(self._nobody, scope=f"timing {number} {picture is new}")
            begun_s = time.perf_counter()
            await asker.chat(question, picture)
            seconds[picture] = time.perf_counter() - begun_s
        return seconds[known] < seconds[new]


def miscounted(findings: Findings, counted: Mapping[str, float]) -> Iterator[str]:
    """Hits that the server counted and nobody was told of. Of several answers to one request, one may serve another."""
    for cache in CACHES:
        told, more = findings.control[cache], findings.tries["several_answers"] if cache == "prefix" else 0
        if not told <= counted[cache] <= told + more:
            yield f"the {cache} cache counted {counted[cache]:g} hits, the victims had {told}"


async def probe(
    server: Server, deployment: Deployment, *, tries: int, pairs: int, done: Callable[[], None] = lambda: None
) -> tuple[Findings, list[bool], list[bool]]:
    """What was found; whether each timed picture was sooner for the attacker, and for the victim itself."""
    async with InferenceServerClient(server.ports.grpc_url) as models:
        attacker = Probe(server, models, deployment)
        await attacker.try_all(tries, done)
        theirs, own = [], []
        for number in range(pairs):
            theirs.append(await attacker.is_sooner(number))
            own.append(await attacker.is_sooner(number, own=True))
            done()
    return attacker.findings, theirs, own


def wilson(hits: int, number: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    share, z = hits / number, 1.96
    middle = share + z**2 / (2 * number)
    half = z * math.sqrt(share * (1 - share) / number + z**2 / (4 * number**2))
    return (middle - half) / (1 + z**2 / number), (middle + half) / (1 + z**2 / number)


def records(findings: Findings, theirs: Sequence[bool], own: Sequence[bool], command: str) -> list[Record]:
    low, high = wilson(sum(theirs), len(theirs))
    ways = ", ".join(f"{way} {number:,}" for way, number in findings.tries.items())
    control = ", ".join(f"{cache} {findings.control[cache]:,}" for cache in CACHES)
    return [
        Record(
            name="found",
            value=len(findings.seen),
            unit="tries",
            baseline=findings.tries.total(),
            command=command,
            versions=versions("tritonclient"),
            note=f"{ways}; {findings.refused.total():,} refused; victims' own hits meanwhile: {control}",
        ),
        Record(
            name="timing",
            value=round(statistics.mean(theirs), 3),
            unit="of pairs sooner",
            baseline=0.5,
            ratio=round(statistics.mean(theirs) / 0.5, 3),
            command=command,
            versions=versions("tritonclient"),
            note=f"{len(theirs)} pairs, 95 % interval {low:.3f} to {high:.3f}; for the victim itself "
            f"{statistics.mean(own):.3f}",
        ),
    ]


def main() -> int:
    """The exit status: 1 where anything was found, or where the probe itself cannot be believed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=at_least(len(WAYS)), default=10_000)
    parser.add_argument("--pairs", type=at_least(20), default=1_000, help="timed")
    parser.add_argument("--json", action="store_true", help="print the records instead of lines")
    arguments = parser.parse_args()
    deployment = Deployment.load(DEPLOYMENT)
    with (
        Server(deployment, log=Path("var/cache-probe.log")) as server,
        Progress(console=Console(stderr=True)) as progress,
    ):
        bar = progress.add_task("cache probe", total=arguments.tries + arguments.pairs)
        findings, theirs, own = asyncio.run(
            probe(
                server,
                deployment,
                tries=arguments.tries,
                pairs=arguments.pairs,
                done=lambda: progress.advance(bar),
            )
        )
    found = records(findings, theirs, own, " ".join(["python -m perf.cache_probe", *sys.argv[1:]]))
    write("cache_probe", found)
    if arguments.json:
        print(json.dumps([asdict(record) for record in found], indent=2))
    else:
        for record in found:
            print(f"{record.name:8} {record.value:g} {record.unit} / {record.baseline:,g}; {record.note}")
    for complaint in findings.complaints:
        print(complaint, file=sys.stderr)
    return 1 if findings.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
