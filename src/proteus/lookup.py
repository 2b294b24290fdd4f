"""Every address behind a name, for who balances by itself over all that the name stands for."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import Executor
from functools import partial
from ipaddress import ip_address


async def addresses(host: str, executor: Executor | None = None) -> frozenset[str]:
    """As they stand before `:port`; of a host with both kinds, those of IPv4. One that is an address stands for itself.

    Raises OSError, or UnicodeError of what is no name.
    """
    if _is_address(host):
        return frozenset({host})
    ask = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(executor, ask)
    ipv4 = {str(address[0]) for family, *_, address in found if family is socket.AF_INET}
    ipv6 = {f"[{address[0]}]" for family, *_, address in found if family is socket.AF_INET6}
    return frozenset(ipv4 or ipv6)


def _is_address(host: str) -> bool:
    try:
        return ip_address(host).version == 4
    except ValueError:
        return False
