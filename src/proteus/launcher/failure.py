"""Why a server does not run."""

from __future__ import annotations

from typing import Self

from proteus.errors import ProteusError


class LaunchFailed(ProteusError):
    """The server cannot start, or could not be kept running; read by whoever starts it, never by a client."""

    code = "launch_failed"
    http_status = 503

    @classmethod
    def of_system(cls, error: OSError) -> Self:
        return cls(
            f"the server cannot be started ({error.strerror})", fix="give this machine or container what it lacks"
        )
