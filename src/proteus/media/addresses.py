"""Where a stranger's URL may send our server: to public addresses, and to networks that the contract names."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: the last 32 bits are the IPv4 address that is reached
GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")  # RFC 4291 §2.4; all that IANA has given out
# Never, whatever the contract names.
NEVER = tuple(
    ipaddress.ip_network(network)
    for network in (
        # cloud metadata
        "169.254.0.0/16",
        "fe80::/10",
        "100.100.100.200/32",
        "168.63.129.16/32",
        "192.0.0.0/24",
        "fd00:ec2::/32",
        "fd20:ce::254/128",
        # nobody's, or everybody's
        "0.0.0.0/8",
        "224.0.0.0/4",
        "255.255.255.255/32",
        "::/128",
        "ff00::/8",
        "fec0::/10",
        "3fff::/20",
        # tunnels and translators to an IPv4 address: RFC 3056, RFC 7526, RFC 4380, RFC 8215
        "2002::/16",
        "192.88.99.0/24",
        "2001::/32",
        "64:ff9b:1::/48",
    )
)


def may_connect(text: str, private_networks: Sequence[str]) -> bool:
    """Whether `text` is an address that is public or in `private_networks`, and none of those that never are."""
    try:
        address = _reached(ipaddress.ip_address(text))
    except ValueError:
        return False
    if "%" in text or any(address in network for network in NEVER):  # % names a link of this machine
        return False
    if any(address in ipaddress.ip_network(network) for network in private_networks):
        return True
    return address.is_global and (address.version == 4 or address in GLOBAL_UNICAST)


def _reached(address: Address) -> Address:
    """The IPv4 address that a mapped or NAT64 one leads to; any other address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address
