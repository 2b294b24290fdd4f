"""Restarts a server whose backend stubs died: Triton neither restarts them nor stops saying that it is ready."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from time import monotonic

from proteus.launcher.processes import is_alive


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """At most `max_restarts` within `window_s`; each one after the first waits `delay_step_s` longer."""

    max_restarts: int = 5
    window_s: float = 60.0
    delay_step_s: float = 0.5


@dataclass(slots=True)
class RestartBudget:
    """Remembers the restarts of the last while and says how long to wait before the next one."""

    policy: RestartPolicy
    clock: Callable[[], float] = monotonic
    _restarts_at: deque[float] = field(default_factory=deque)

    def take(self) -> float | None:
        """Counts one restart. Seconds to wait before it, or None when there have been too many."""
        now = self.clock()
        while self._restarts_at and now - self._restarts_at[0] > self.policy.window_s:
            self._restarts_at.popleft()
        if len(self._restarts_at) >= self.policy.max_restarts:
            return None
        self._restarts_at.append(now)
        return self.policy.delay_step_s * (len(self._restarts_at) - 1)


def find_death(server_pid: int, stubs: Mapping[int, str], alive: Callable[[int], bool] = is_alive) -> str | None:
    """Who died, in words for the log; None while all live."""
    if not alive(server_pid):
        return "the server process died"
    dead = sorted({model for pid, model in stubs.items() if not alive(pid)})
    return f"a stub of {_listed(dead)} died" if dead else None


def _listed(models: Collection[str]) -> str:
    return ", ".join(f"'{model}'" for model in models)
