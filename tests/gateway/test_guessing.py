"""Who tries keys is not looked at for a while, and whose address it is, behind a proxy or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus.gateway.errors import TooManyBadKeys
from proteus.gateway.http.addresses import Proxies, network_of
from proteus.gateway.http.connections import Connections
from proteus.gateway.http.guessing import MAX_NETWORKS, WINDOW_S, Guessing
from proteus.gateway.tenancy.tenants_file import digest_of, new_key
from tests.client.peer import Peer
from tests.gateway.running import in_front_of, started

SETTINGS = in_front_of("127.0.0.1:1").gateway
assert SETTINGS is not None
LIMITS = SETTINGS.http


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def guessing(most: int = 3) -> tuple[Guessing, Clock]:
    clock = Clock()
    return Guessing(most, clock), clock


def test_after_so_many_bad_keys_none_is_looked_at_for_the_rest_of_the_minute() -> None:
    tries, clock = guessing()
    for _ in range(3):
        tries.check("192.0.2.1")
        tries.failed("192.0.2.1")
        clock.now_s += 10
    with pytest.raises(TooManyBadKeys, match="max_bad_keys_per_minute = 3") as refusal:
        tries.check("192.0.2.1")
    assert refusal.value.retry_after_s == WINDOW_S - 30
    tries.check("192.0.2.2")
    clock.now_s += WINDOW_S - 30
    tries.check("192.0.2.1")
    tries.failed("192.0.2.1")
    tries.check("192.0.2.1")


def test_an_ipv6_network_is_one_client() -> None:
    tries, _ = guessing()
    for number in range(3):
        tries.failed(f"2001:db8::{number}")
    with pytest.raises(TooManyBadKeys):
        tries.check("2001:db8::ffff")
    tries.check("2001:db8:0:1::1")


def test_who_tried_last_is_forgotten_last() -> None:
    tries, clock = guessing(1)
    tries.failed("192.0.2.1")
    tries.failed("192.0.2.2")
    clock.now_s += WINDOW_S
    tries.failed("192.0.2.1")
    assert list(tries._seen) == ["192.0.2.2", "192.0.2.1"]


def test_no_more_networks_are_remembered_than_fit() -> None:
    tries, _ = guessing()
    for number in range(MAX_NETWORKS + 100):
        tries.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(tries._seen) == MAX_NETWORKS


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("", ""),
        ("no address", "no address"),
    ],
)
def test_what_is_counted_as_one_client(address: str, network: str) -> None:
    assert network_of(address) == network


@given(st.ip_addresses().map(str))
def test_every_address_has_a_network(address: str) -> None:
    assert network_of(address)


def asked_by(peer: str, *forwarded: str) -> Any:
    return {"client": (peer, 1), "headers": [(b"x-forwarded-for", one.encode()) for one in forwarded]}


@pytest.mark.parametrize(
    ("networks", "peer", "forwarded", "client"),
    [
        ([], "10.0.0.1", ["192.0.2.1"], "10.0.0.1"),
        (["10.0.0.0/8"], "192.0.2.9", ["192.0.2.1"], "192.0.2.9"),
        (["10.0.0.0/8"], "10.0.0.1", ["192.0.2.1"], "192.0.2.1"),
        (["10.0.0.0/8"], "10.0.0.1", ["6.6.6.6, 192.0.2.1"], "192.0.2.1"),
        (["10.0.0.0/8"], "10.0.0.1", ["6.6.6.6", "192.0.2.1, 10.0.0.2"], "192.0.2.1"),
        (["10.0.0.0/8"], "::ffff:10.0.0.1", ["2001:db8::1"], "2001:db8::1"),
        (["10.0.0.0/8"], "10.0.0.1", [], "10.0.0.1"),
        (["10.0.0.0/8"], "10.0.0.1", ["x\x1b[31m"], "10.0.0.1"),
        (["10.0.0.0/8"], "10.0.0.1", ["192.0.2.1, unknown"], "10.0.0.1"),
    ],
)
def test_only_a_proxy_is_believed(networks: list[str], peer: str, forwarded: list[str], client: str) -> None:
    assert Proxies(networks).client_of(asked_by(peer, *forwarded)) == client


def doors(clock: Clock, **limits: Any) -> Connections:
    few = LIMITS.model_copy(update={"max_connections": 5, "max_connections_per_address": 2, **limits})
    return Connections(few, Proxies(["10.0.0.0/8"]), clock)


def test_a_proxy_has_as_many_connections_as_there_are() -> None:
    crowded = doors(Clock())
    assert [crowded.enter("192.0.2.1") is None for _ in range(3)] == [True, True, False]
    assert [crowded.enter("10.0.0.1") is None for _ in range(4)] == [True, True, True, False]
    assert crowded.refused["connections_of_address"] == crowded.refused["connections"] == 1


def test_nothing_is_remembered_of_who_has_left() -> None:
    quiet = doors(Clock())
    for number in range(100):
        address = f"2001:db8:{number}::1"
        assert quiet.enter(address) is None
        quiet.leave(address)
    assert quiet.open == len(quiet._of_network) == 0


def test_a_flood_of_refusals_is_no_flood_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    flooded = doors(clock)
    for _ in range(1_000):
        flooded.refuse("malformed", "2001:db8::1")
        clock.now_s += 0.015
    assert [record.getMessage() for record in caplog.records] == [
        f"malformed: {count} refused or cut off, last of 2001:db8::/64" for count in (1, 667)
    ]


def test_a_network_that_is_none_is_refused_in_the_file() -> None:
    with pytest.raises(ValueError, match="does not appear to be an IPv4 or IPv6 network"):
        in_front_of("127.0.0.1:1", http={"proxies": ["10.0.0.0/99"]})


def test_a_key_that_is_guessed_is_never_in_the_log(peer: Peer, tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text('[tenants.acme]\nkeys = ["sha256:%s"]\n' % ("0" * 64))
    deployment = in_front_of(peer.url, http={"max_bad_keys_per_minute": 3})
    assert deployment.gateway is not None
    with_keys = deployment.gateway.model_copy(update={"tenants": str(tenants)})
    with (
        started(deployment.model_copy(update={"gateway": with_keys})) as one,
        httpx.Client(base_url=one.url) as client,
    ):
        told = [
            client.get("/v1/models", headers={"authorization": f"Bearer pk-secret-{number}"}).status_code
            for number in range(5)
        ]
        again = client.get("/v1/models", headers={"authorization": "Bearer pk-secret-6"})
    assert told == [401, 401, 401, 429, 429]
    assert again.json()["error"]["code"] == "too_many_bad_keys"
    assert 50 <= int(again.headers["retry-after"]) <= 60
    assert "bad keys within a minute from 127.0.0.1" in caplog.text
    assert "secret" not in caplog.text


def test_a_key_that_has_expired_is_no_guess_and_locks_nobody_out(peer: Peer, tmp_path: Path) -> None:
    old, good = new_key(), new_key()
    digests = [digest_of(key.encode()).hex() for key in (old, good)]
    (tmp_path / "tenants.toml").write_text(
        f'[tenants.acme]\nkeys = [{{ hash = "sha256:{digests[0]}", expires = 2020-01-02 }}]\n'
        f'[tenants.bolt]\nkeys = ["sha256:{digests[1]}"]\n'
    )
    deployment = in_front_of(
        peer.url,
        http={"max_bad_keys_per_minute": 3},
        tenants=str(tmp_path / "tenants.toml"),  # type: ignore[arg-type]
    )
    with started(deployment) as one, httpx.Client(base_url=one.url) as client:
        told = [
            client.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code
            for key in (old, old, old, old, good)
        ]
        counted = one.gateway.tenants.figures()["bad_keys"]
    assert (told, counted) == ([401, 401, 401, 401, 200], 4)
