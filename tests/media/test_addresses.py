from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus.media.addresses import may_connect

PUBLIC = ["8.8.8.8", "1.1.1.1", "2001:4860:4860::8888", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]
PRIVATE = {  # address: the network that would allow it
    "127.0.0.1": "127.0.0.0/8",
    "10.1.2.3": "10.0.0.0/8",
    "172.16.0.1": "172.16.0.0/12",
    "192.168.1.1": "192.168.0.0/16",
    "100.64.0.1": "100.64.0.0/10",
    "198.18.0.1": "198.18.0.0/15",
    "192.0.2.1": "192.0.2.0/24",
    "240.0.0.1": "240.0.0.0/4",
    "::1": "::1/128",
    "fd12::1": "fc00::/7",
    "2001:db8::1": "2001:db8::/32",
    "::127.0.0.1": "::/96",
    "4000::1": "4000::/3",
    "5f00::1": "5f00::/16",
    "::ffff:0:127.0.0.1": "::ffff:0:0:0/96",
    "::ffff:127.0.0.1": "127.0.0.0/8",
    "::ffff:10.0.0.1": "10.0.0.0/8",
    "64:ff9b::192.168.0.1": "192.168.0.0/16",
}
NEVER = [
    *["169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192"],
    *["fd00:ec2::254", "fd20:ce::254", "fe80::1", "fe80::a9fe:a9fe"],
    *["0.0.0.0", "0.1.2.3", "::", "224.0.0.1", "239.255.255.250", "ff02::1", "ff0e::1", "255.255.255.255"],
    *["fec0::1", "3fff::1", "192.88.99.1"],
    *["::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "::ffff:0.0.0.0", "64:ff9b::169.254.169.254", "64:ff9b::"],
    *["2002:7f00:1::1", "2002:a9fe:a9fe::1", "2002:808:808::1", "2001:0:a9fe:a9fe::1", "64:ff9b:1::7f00:1"],
    *["2606:4700::1111%eth0", "fe80::1%1", "::1%lo"],
]
NO_ADDRESS = [
    "",
    " ",
    "localhost",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "8.8.8.8 ",
    "[::1]",
    "8.8.8.8/32",
]
EVERYTHING = ["0.0.0.0/0", "::/0"]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_may_be_dialled(address: str) -> None:
    assert may_connect(address, [])


@pytest.mark.parametrize("address", PRIVATE)
def test_others_only_when_their_network_is_named(address: str) -> None:
    assert not may_connect(address, [])
    assert not may_connect(address, ["203.0.113.0/24", "2001:db8:ffff::/48"])
    assert may_connect(address, [PRIVATE[address]])


@pytest.mark.parametrize("address", NEVER)
def test_metadata_groups_and_tunnels_never_whatever_is_named(address: str) -> None:
    assert not may_connect(address, [])
    assert not may_connect(address, [*EVERYTHING, f"{address.partition('%')[0]}/128" if ":" in address else address])


@pytest.mark.parametrize("text", NO_ADDRESS)
def test_what_is_no_address_is_not_dialled(text: str) -> None:
    assert not may_connect(text, EVERYTHING)


@given(st.ip_addresses(v=4))
def test_an_address_is_judged_alike_however_it_is_wrapped(address: ipaddress.IPv4Address) -> None:
    for networks in ([], EVERYTHING, ["10.0.0.0/8"]):
        plain = may_connect(str(address), networks)
        assert may_connect(f"::ffff:{address}", networks) == plain
        assert may_connect(f"64:ff9b::{address}", networks) == plain


@given(st.ip_addresses(v=6))
def test_ipv6_is_public_only_in_what_was_given_out(address: ipaddress.IPv6Address) -> None:
    if may_connect(str(address), []):
        assert int(address) >> 125 == 1 or address.ipv4_mapped or str(address).startswith("64:ff9b::")
