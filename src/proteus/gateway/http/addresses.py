"""Network addresses of clients: behind which proxy, and which of them are one client's."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.types import Scope

IPV6_PREFIX = 64  # one client's: it may take any address in it


def network_of(address: str) -> str:
    """What is counted as one client: an IPv4 address, or an IPv6 /64. What is no address is itself."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return address
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((int(ip) >> IPV6_PREFIX << IPV6_PREFIX, IPV6_PREFIX)))


class Proxies:
    """Reverse proxies in front of the gateway, known by their networks; only what they say of a client is believed."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = tuple(ipaddress.ip_network(network) for network in networks)

    def has(self, address: str) -> bool:
        if not self._networks:
            return False
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return False
        ip = getattr(ip, "ipv4_mapped", None) or ip
        return any(ip in network for network in self._networks)

    def client_of(self, scope: Scope) -> str:
        """The last address of X-Forwarded-For that is no proxy's; of who is no proxy, its own."""
        address = str((scope.get("client") or ("",))[0])
        if not self.has(address):
            return address
        told = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-for").decode("latin-1")
        for hop in reversed(told.split(",")):
            try:
                address = str(ipaddress.ip_address(hop.strip()))
            except ValueError:
                break
            if not self.has(address):
                break
        return address
