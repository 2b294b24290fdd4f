"""What each tenant holds in flight and has used of its budget per second, by the exact vector of each request.

Of each resource per second a debt is kept: a request adds to it, time takes it off, and it never passes `burst_s`
seconds' worth (a token bucket, told from its other side, so that a changed limit counts at once).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from proteus.admission.ask import FEWER_MEDIA, FIXES
from proteus.cost.vector import ResourceVector
from proteus.errors import MediaTooLarge
from proteus.gateway.errors import OverBudget
from proteus.gateway.order import Tenant

NOTHING = ResourceVector()
LEAST_HINT_S, LONGEST_HINT_S = 0.1, 60.0
FIRST_HELD_S = 1.0  # of a tenant of which no request has ended yet
NEWEST_SHARE = 0.25  # of the last request in the mean time that requests are held


@dataclass(slots=True, eq=False)
class _Book:
    """Of one tenant."""

    held: ResourceVector = NOTHING
    mean_held_s: float = FIRST_HELD_S
    debts: dict[str, float] = field(default_factory=dict)  # resource -> used and not yet made up for, at `at_s`
    at_s: float = 0.0


class Charge:
    """Of one request: what it holds is given back with the block, what it has used is settled once it is known."""

    def __init__(self, book: _Book, tenant: Tenant, vector: ResourceVector, clock_s: Callable[[], float]) -> None:
        self._book, self._tenant, self._vector, self._clock_s = book, tenant, vector, clock_s
        self._begun_s = clock_s()
        self._held, self._settled = True, False
        self.answered = False  # by a server, if only in part; set by whoever is given the answer

    def __enter__(self) -> Charge:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._held:
            raise RuntimeError("this budget is given back already")
        self._held = False
        book, took_s = self._book, self._clock_s() - self._begun_s
        book.held -= self._vector
        book.mean_held_s += (took_s - book.mean_held_s) * NEWEST_SHARE

    def reported(self, report: Mapping[str, Any]) -> None:
        """By the server, of all that was used."""
        self.settle(used_of(self._vector, report))

    def settle(self, used: ResourceVector) -> None:
        """What of the vector was not used comes back to the budgets per second; only the first time counts."""
        if self._settled:
            return
        self._settled = True
        debts = self._book.debts
        for name in self._tenant.per_second.keys() & debts.keys():
            unused = getattr(self._vector, name) - getattr(used, name)
            debts[name] = max(0.0, debts[name] - max(0, unused))


class Budgets:
    """For one event loop. Keeps a book for each tenant that ever had a budget; their number is that of the file."""

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._books: dict[str, _Book] = {}
        self._refusals: Counter[tuple[str, str]] = Counter()

    def charge(self, tenant: Tenant, vector: ResourceVector) -> Charge:
        """All of it or nothing. Raises OverBudget, or MediaTooLarge where no waiting would help."""
        book = self._books.setdefault(tenant.name, _Book())
        self._pay(book, tenant)
        self._refuse_what_never_fits(tenant, vector)
        self._refuse_what_does_not_fit_now(book, tenant, vector)
        for name in tenant.per_second:
            book.debts[name] = book.debts.get(name, 0.0) + getattr(vector, name)
        book.held += vector
        return Charge(book, tenant, vector, self._clock_s)

    def held(self, tenant: str) -> ResourceVector:
        """In flight now."""
        book = self._books.get(tenant)
        return NOTHING if book is None else book.held

    def affords(self, tenant: Tenant, vector: ResourceVector) -> bool:
        """Whether `charge` would succeed now."""
        book = self._books.setdefault(tenant.name, _Book())
        self._pay(book, tenant)
        return next(_never(tenant, vector), None) is None and next(_short(book, tenant, vector), None) is None

    def figures(self) -> Mapping[tuple[str, str], int]:
        """Refusals by tenant and resource, since the start."""
        return dict(self._refusals)

    def _pay(self, book: _Book, tenant: Tenant) -> None:
        """Takes off what time has made up for; what is no longer limited is forgotten."""
        now_s = self._clock_s()
        passed_s, book.at_s = now_s - book.at_s, now_s
        book.debts = {
            name: max(0.0, debt - tenant.per_second[name] * passed_s)
            for name, debt in book.debts.items()
            if name in tenant.per_second
        }

    def _refuse_what_never_fits(self, tenant: Tenant, vector: ResourceVector) -> None:
        for table, name in _never(tenant, vector):
            self._refusals[tenant.name, name] += 1
            raise MediaTooLarge(
                f"the request needs {name} = {getattr(vector, name):,}",
                limit=_limit(tenant, table, name),
                fix=FIXES.get(name, FEWER_MEDIA),
            )

    def _refuse_what_does_not_fit_now(self, book: _Book, tenant: Tenant, vector: ResourceVector) -> None:
        short = list(_short(book, tenant, vector))
        if short:
            worst = max(short, key=lambda one: one.after_s)
            self._refusals[tenant.name, worst.name] += 1
            raise OverBudget(
                f"{tenant.name} has {worst.name} = {worst.used:,.0f} {worst.where} and asks for {worst.needed:,} more",
                limit=_limit(tenant, worst.table, worst.name),
                retry_after_s=min(max(worst.after_s, LEAST_HINT_S), LONGEST_HINT_S),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Short:
    """Of one resource there is too little for now."""

    table: str
    name: str
    needed: int
    used: float
    where: str
    after_s: float  # until there is enough, as far as can be told


def _never(tenant: Tenant, vector: ResourceVector) -> Iterator[tuple[str, str]]:
    """(table, resource) of which no waiting gives enough."""
    burst = {name: rate * tenant.burst_s for name, rate in tenant.per_second.items()}
    for table, limits in (("in_flight", tenant.in_flight), ("per_second", burst)):
        for name, limit in limits.items():
            if getattr(vector, name) > limit:
                yield table, name


def _short(book: _Book, tenant: Tenant, vector: ResourceVector) -> Iterator[_Short]:
    for name, limit in tenant.in_flight.items():
        needed, held = getattr(vector, name), getattr(book.held, name)
        if needed and (over := held + needed - limit) > 0:  # as held requests end one by one
            after_s = book.mean_held_s * over / held
            yield _Short(table="in_flight", name=name, needed=needed, used=held, where="in flight", after_s=after_s)
    for name, rate in tenant.per_second.items():
        needed, debt = getattr(vector, name), book.debts.get(name, 0.0)
        if needed and (over := debt + needed - rate * tenant.burst_s) > 0:
            yield _Short(
                table="per_second", name=name, needed=needed, used=debt, where="used ahead", after_s=over / rate
            )


def used_of(vector: ResourceVector, report: Mapping[str, Any]) -> ResourceVector:
    """What a server reports of a request, in the words of its vector: no more than was planned."""
    usage = report.get("usage", {})
    known = {name: usage[name] for name in ("output_tokens", "images", "evaluations", "token_passes") if name in usage}
    return ResourceVector(**{name: min(value, known.get(name, value)) for name, value in vector.named()})


def _limit(tenant: Tenant, table: str, name: str) -> str:
    limits = getattr(tenant, table)
    burst = f", burst_s = {tenant.burst_s:g}" if table == "per_second" else ""
    return f"[tenants.{tenant.name}.{table}] {name} = {limits[name]:,}{burst}"
