from __future__ import annotations

import socket

from proteus.launcher import ports


def test_given_ports_are_kept_and_the_others_are_free_and_different() -> None:
    chosen = ports.choose(http=8123, grpc=None, metrics=None)
    assert chosen.http == 8123
    assert len({chosen.http, chosen.grpc, chosen.metrics}) == 3
    assert ports.is_free(chosen.grpc)
    assert ports.is_free(chosen.metrics)


def test_a_port_somebody_listens_on_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert not ports.is_free(listening.getsockname()[1])


def test_urls_name_loopback() -> None:
    chosen = ports.Ports(http=1, grpc=2, metrics=3)
    assert (chosen.http_url, chosen.grpc_url) == ("127.0.0.1:1", "127.0.0.1:2")
    assert chosen.metrics_url == "http://127.0.0.1:3/metrics"
