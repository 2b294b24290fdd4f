"""Where a stranger's URL may send our server: to public addresses, and to networks that the contract names."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052
LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")  # RFC 8215
COMPATIBLE = ipaddress.IPv6Network("::/96")  # RFC 4291 §2.5.5.1
# Never, whatever the contract names: cloud metadata lives on link-local addresses and on a few fixed ones.
NEVER: tuple[Network, ...] = (
    ipaddress.IPv4Network("169.254.0.0/16"),
    ipaddress.IPv6Network("fe80::/10"),
    ipaddress.IPv6Network("fd00:ec2::254/128"),
    ipaddress.IPv4Network("100.100.100.200/32"),
    ipaddress.IPv4Network("0.0.0.0/8"),
    ipaddress.IPv4Network("224.0.0.0/4"),
    ipaddress.IPv6Network("ff00::/8"),
    ipaddress.IPv6Network("::/128"),
)


def may_connect(text: str, private_networks: Sequence[str]) -> bool:
    """Whether every address that `text` stands for is public or in `private_networks`, and none is a forbidden one."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    networks = [ipaddress.ip_network(network) for network in private_networks]
    return all(_may_connect(one, networks) for one in _meant(address))


def _may_connect(address: Address, networks: Sequence[Network]) -> bool:
    if any(address in network for network in NEVER):
        return False
    if any(address in network for network in networks):
        return True
    return address.is_global and not address.is_multicast and not address.is_reserved


def _meant(address: Address) -> Iterator[Address]:
    """The address, and the IPv4 ones inside it; a mapped IPv4 address is that address and nothing else."""
    if isinstance(address, ipaddress.IPv4Address):
        yield address
        return
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
        return
    if address in NAT64 or (address in COMPATIBLE and int(address) > 1):
        yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address in LOCAL_NAT64:
        yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    yield address
