"""Whose request it is, by its API key."""

from __future__ import annotations

from proteus.gateway.order import Tenant

LOCAL = Tenant(name="local", cache_scope="local")  # everybody's, where no keys are asked for


class Tenants:
    """Without a file, everybody is the one tenant `local`."""

    def of(self, authorization: bytes, address: str) -> Tenant:
        """Raises InvalidKey."""
        return LOCAL
