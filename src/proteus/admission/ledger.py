"""What all admitted requests hold together, never more than the capacity. Knows no queue, clock or tenant."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from proteus.cost.vector import ResourceVector
from proteus.limits import Resources

NOTHING = ResourceVector()


class Reservation:
    """Resources held by one request until `release`, which must happen exactly once: `with` does it on every path."""

    __slots__ = ("_ledger", "vector")

    def __init__(self, ledger: Ledger, vector: ResourceVector) -> None:
        self._ledger = ledger
        self.vector = vector

    @property
    def held(self) -> bool:
        """Whether it was not released yet."""
        return self._ledger.holds(self)

    def release(self) -> None:
        """Gives everything back; RuntimeError the second time, which would free what another request holds."""
        self._ledger.release(self)

    def shrink(self, to: ResourceVector) -> None:
        """Holds only `to` from now on; ValueError where that is more, RuntimeError after the release."""
        self._ledger.shrink(self, to)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


class Ledger:
    """One for a deployment. `freed` is called after each release or shrink: what waits may fit now."""

    def __init__(self, capacity: Resources, *, freed: Callable[[], None] = lambda: None) -> None:
        self._capacity = tuple(capacity.named())
        self._freed = freed
        self._open: set[Reservation] = set()
        self.held = NOTHING
        self.peak = NOTHING  # the most ever held, of each resource by itself

    def __len__(self) -> int:
        """Reservations not yet released."""
        return len(self._open)

    def holds(self, reservation: Reservation) -> bool:
        """Whether `reservation` is of this ledger and not yet released."""
        return reservation in self._open

    def limited(self, vector: ResourceVector) -> frozenset[str]:
        """Names of the limited resources of which `vector` needs any."""
        return frozenset(name for name, _ in self._capacity if getattr(vector, name))

    def short(self, vector: ResourceVector) -> frozenset[str]:
        """Names of the resources of which not enough is free for `vector`; none: it can be reserved."""
        held = self.held
        return frozenset(
            name
            for name, limit in self._capacity
            if (needed := getattr(vector, name)) and getattr(held, name) + needed > limit
        )

    def resize(self, capacity: Resources) -> None:
        """From now on: what is held stays, and what comes waits until all of it fits."""
        self._capacity = tuple(capacity.named())
        self._freed()

    def can_reserve(self, vector: ResourceVector) -> bool:
        """Whether `reserve` would succeed now."""
        return not self.short(vector)

    def reserve(self, vector: ResourceVector) -> Reservation:
        """Takes all of `vector` at once; ValueError when it does not fit or an amount is below zero."""
        if short := self.short(vector):
            raise ValueError(f"not enough {', '.join(sorted(short))} left")
        if any(value < 0 for _, value in vector.named()):
            raise ValueError("amounts are never below zero")
        reservation = Reservation(self, vector)
        self._open.add(reservation)
        self.held += vector
        self.peak = _larger(self.peak, self.held)
        return reservation

    def release(self, reservation: Reservation) -> None:
        """Frees what `reservation` holds; RuntimeError when it holds nothing here."""
        self._must_be_open(reservation)
        self._open.remove(reservation)
        self.held -= reservation.vector
        self._freed()

    def shrink(self, reservation: Reservation, to: ResourceVector) -> None:
        """Frees what `reservation` holds beyond `to`; ValueError where `to` is more, RuntimeError when released."""
        self._must_be_open(reservation)
        for (name, now), (_, then) in zip(reservation.vector.named(), to.named(), strict=True):
            if not 0 <= then <= now:
                raise ValueError(f"{name} = {now} cannot shrink to {then}")
        self.held -= reservation.vector - to
        reservation.vector = to
        self._freed()

    def check(self) -> None:
        """RuntimeError unless the open reservations add up to what is held, within the capacity; for tests."""
        total = sum((reservation.vector for reservation in self._open), NOTHING)
        if total != self.held:
            raise RuntimeError(f"reservations add up to {total}, the ledger holds {self.held}")
        if over := [name for name, limit in self._capacity if getattr(self.held, name) > limit]:
            raise RuntimeError(f"over capacity: {', '.join(sorted(over))}")

    def _must_be_open(self, reservation: Reservation) -> None:
        if not self.holds(reservation):
            raise RuntimeError("this reservation is released already")


def _larger(one: ResourceVector, other: ResourceVector) -> ResourceVector:
    return ResourceVector(**{name: max(value, getattr(other, name)) for name, value in one.named()})
