from __future__ import annotations

import socket

import pytest

from proteus.launcher import LaunchFailed, ports


def test_given_ports_are_kept_and_the_others_are_free_and_different() -> None:
    chosen = ports.choose(http=8123, grpc=None, metrics=None)
    assert chosen.http == 8123
    assert len({chosen.http, chosen.grpc, chosen.metrics}) == 3
    assert ports.is_free(chosen.grpc)
    assert ports.is_free(chosen.metrics)


def test_a_port_somebody_listens_on_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert not ports.is_free(port)
        assert not ports.is_free(port, "0.0.0.0"), "nor for a server that listens everywhere"


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(LaunchFailed, match=r"192\.0\.2\.1 has no free port; fix: give an address of this machine"):
        ports.choose(http=None, grpc=None, metrics=None, host="192.0.2.1")


@pytest.mark.parametrize(
    ("host", "from_here"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("10.1.2.3", "10.1.2.3")]
)
def test_urls_name_an_address_that_this_machine_reaches(host: str, from_here: str) -> None:
    chosen = ports.Ports(http=1, grpc=2, metrics=3, host=host)
    assert (chosen.http_url, chosen.grpc_url) == (f"{from_here}:1", f"{from_here}:2")
    assert chosen.metrics_url == f"http://{from_here}:3/metrics"


@pytest.mark.parametrize(("host", "is_loopback"), [("127.0.0.1", True), ("0.0.0.0", False), ("10.1.2.3", False)])
def test_only_loopback_is_loopback(host: str, is_loopback: bool) -> None:
    assert ports.is_loopback(host) is is_loopback


@pytest.mark.parametrize("host", ["", "localhost", "::", "10.1.2"])
def test_an_address_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(LaunchFailed, match=r"an IPv4 address.*0\.0\.0\.0"):
        ports.is_loopback(host)
