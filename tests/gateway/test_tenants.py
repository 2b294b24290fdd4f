"""Whose request it is, and what the file of tenants must be."""

from __future__ import annotations

import asyncio
import logging
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from proteus.deployment import Deployment, DeploymentError
from proteus.gateway.errors import InvalidKey
from proteus.gateway.tenancy import tenants as tenants_module
from proteus.gateway.tenancy.tenants import LOCAL, Tenants, tenants_path
from proteus.gateway.tenancy.tenants_file import KEY, digest_of, keys_of, new_key, read_tenants

ROOT = Path(__file__).parents[2]


def hash_of(key: str) -> str:
    return f"sha256:{digest_of(key.encode()).hex()}"


def file_of(path: Path, content: str) -> Path:
    """Another one than before, whatever the clock of the file system."""
    fresh = path / "new.toml"
    fresh.write_text(content)
    os.replace(fresh, path / "tenants.toml")
    return path / "tenants.toml"


def with_key(key: str, more: str = "") -> str:
    return f'[tenants.acme]\nkeys = ["{hash_of(key)}"]\n{more}\n'


def bearer(key: str) -> bytes:
    return f"Bearer {key}".encode()


def test_keys_are_random_and_of_one_form() -> None:
    made = {new_key() for _ in range(50)}
    assert len(made) == 50
    assert all(KEY.fullmatch(key.encode()) for key in made)


def test_without_a_file_everybody_is_local() -> None:
    tenants = Tenants()
    assert not tenants.asks_for_keys
    assert tenants.of(b"Bearer anything") is LOCAL is tenants.of(b"")


def test_a_key_is_its_tenant_with_all_that_the_file_says(tmp_path: Path) -> None:
    old, new = new_key(), new_key()
    file = file_of(
        tmp_path,
        f'[tenants.acme]\nkeys = ["{hash_of(old)}", {{ hash = "{hash_of(new)}", name = "laptop" }}]\n'
        'models = ["demo"]\nweight = 3\nburst_s = 2.5\n'
        "in_flight = { requests = 2 }\nper_second = { visual_tokens = 0.5, requests = 3 }\n",
    )
    tenants = Tenants(file)
    tenant = tenants.of(bearer(new))
    assert (tenant.name, tenant.key, tenant.cache_scope, tenant.models) == ("acme", "laptop", "acme", {"demo"})
    assert (tenant.weight, tenant.burst_s) == (3, 2.5)
    assert (tenant.in_flight, tenant.per_second) == ({"requests": 2}, {"visual_tokens": 0.5, "requests": 3})
    assert tenants.of(bearer(old)).key == hash_of(old)[7:15]


KNOWN = "pk-" + "a" * 43


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        KNOWN.encode(),
        f"Bearer  {KNOWN}".encode(),
        f"Bearer {KNOWN} ".encode(),
        f"Bearer {KNOWN}\x00".encode(),
        f"Bearer {KNOWN[:-1]}".encode(),
        f"Bearer {KNOWN}a".encode(),
        f"Bearer {KNOWN[:-1]}A".encode(),
        f"Bearer {KNOWN.upper()}".encode(),
        f"Basic {KNOWN}".encode(),
        f"Bearer {KNOWN}, Bearer {KNOWN}".encode(),
        b"Bearer " + b"\xff" * 46,
        b"Bearer " + b"a" * 100_000,
    ],
)
def test_anything_but_a_known_key_is_refused(header: bytes, tmp_path: Path) -> None:
    tenants = Tenants(file_of(tmp_path, with_key(KNOWN)))
    with pytest.raises(InvalidKey, match="fix: send the header Authorization: Bearer") as refused:
        tenants.of(header)
    assert KNOWN not in str(refused.value)
    assert tenants.figures()["bad_keys"] == (1 if header else 0)
    assert tenants.of(b"bearer " + KNOWN.encode()).name == "acme"


@pytest.mark.parametrize(
    ("expires", "is_valid"),
    [
        ("2026-12-01", True),
        ("2026-11-30", False),
        ("2026-11-30T12:00:01Z", True),
        ("2026-11-30T12:00:00", False),
        ("2026-11-30T13:30:00+02:00", False),
    ],
)
def test_a_key_is_valid_until_it_expires(expires: str, is_valid: bool, tmp_path: Path) -> None:
    file = file_of(tmp_path, f'[tenants.acme]\nkeys = [{{ hash = "{hash_of(KNOWN)}", expires = {expires} }}]\n')
    tenants = Tenants(file, now=lambda: datetime(2026, 11, 30, 12, tzinfo=UTC))
    if is_valid:
        assert tenants.of(bearer(KNOWN)).name == "acme"
    else:
        with pytest.raises(InvalidKey, match="has expired; limit: 2026-11-30 (00:00|12:00|11:30) UTC"):
            tenants.of(bearer(KNOWN))


SHA = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("tenants", "is not TOML"),
        (f"x = {'[' * 10_000}", "is not TOML"),
        (f"[tenants.acme]\nweight = {'1' * 5_000}", "is not TOML"),
        ("", "tenants: Field required"),
        ("[tenants]", "at least 1 item"),
        ("[tenants.acme]\nkey = 1", "unknown key 'tenants.acme.key'"),
        ('[tenants.acme]\nkeys = ["pk-secret"]', "tenants.acme.keys.0.hash: String should match"),
        ('[tenants."a b"]', "tenants.a b: String should match"),
        ("[tenants.acme.in_flight]\npixels = 1", "tenants.acme.in_flight.pixels: pixels is no resource; known are"),
        ("[tenants.acme.in_flight]\nrequests = 0", "in_flight.requests: Input should be greater than 0"),
        ("[tenants.acme.in_flight]\nrequests = 1.5", "in_flight.requests"),
        ("[tenants.acme.per_second]\nrequests = inf", "per_second.requests"),
        ("[tenants.acme]\nweight = 0", "tenants.acme.weight"),
        ("[tenants.acme]\nburst_s = 0.0", "tenants.acme.burst_s"),
        ('[tenants.acme]\ncache_scope = "x"\nshared_scope = "y"', "cache_scope and shared_scope are both given"),
        (f'[tenants.a]\nkeys = ["{SHA}"]\n[tenants.b]\nkeys = ["{SHA}"]', "listed twice: of a and of b"),
        (f'[tenants.a]\nkeys = ["{SHA}", {{ hash = "{SHA}", name = "x" }}]', "listed twice: of a and of a"),
        ('[tenants.a]\n[tenants.b]\ncache_scope = "a"', "a and b have one cache scope, a"),
        ('[tenants.a]\ncache_scope = "c"\n[tenants.b]\ncache_scope = "c"', "one cache scope, c"),
        ('[tenants.a]\nshared_scope = "c"\n[tenants.b]\ncache_scope = "c"', "one cache scope, c"),
        ('[tenants.a]\nshared_scope = "b"\n[tenants.b]\n', "one cache scope, b"),
    ],
)
def test_a_file_that_cannot_be_used_says_why_and_never_repeats_a_key(content: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(DeploymentError) as refused:
        Tenants(file_of(tmp_path, content))
    assert told in str(refused.value) and "tenants.toml" in str(refused.value) and "fix: " in str(refused.value)
    assert "pk-secret" not in str(refused.value)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match="cannot be read"):
        Tenants(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(DeploymentError, match="is not UTF-8"):
        Tenants(tmp_path / "bytes.toml")


def test_two_that_trust_each_other_share_a_scope(tmp_path: Path) -> None:
    file = file_of(tmp_path, '[tenants.a]\nshared_scope = "c"\n[tenants.b]\nshared_scope = "c"\n')
    assert [table.shared_scope for table in read_tenants(file).tenants.values()] == ["c", "c"]


def test_the_example_is_a_file_of_tenants() -> None:
    keys = keys_of(read_tenants(ROOT / "deployments" / "tenants.example.toml"))
    assert {key.tenant.name for key in keys.values()} == {"acme", "studio", "print"}


def test_the_file_lies_beside_the_deployment_file() -> None:
    demo = Deployment.load(ROOT / "deployments" / "demo.toml")
    assert tenants_path(demo) is None
    assert demo.gateway is not None
    with_tenants = demo.model_copy(update={"gateway": demo.gateway.model_copy(update={"tenants": "t.toml"})})
    assert tenants_path(with_tenants) == ROOT / "deployments" / "t.toml"


def test_a_changed_file_is_taken_in_and_a_broken_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = new_key(), new_key()
    tenants = Tenants(file_of(tmp_path, with_key(first)))
    tenants.look()
    assert tenants.figures()["file_reads"] == 1

    file_of(tmp_path, with_key(second))
    with caplog.at_level(logging.WARNING):
        tenants.look()
    assert tenants.of(bearer(second)).name == "acme"
    with pytest.raises(InvalidKey):
        tenants.of(bearer(first))

    for broken in ("[tenants", None):
        if broken is None:
            (tmp_path / "tenants.toml").unlink()
        else:
            file_of(tmp_path, broken)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            tenants.look()
            tenants.look()
        assert [record.getMessage()[:28] for record in caplog.records] == ["the tenants stay as they wer"]
        assert tenants.of(bearer(second)).name == "acme"
        assert tenants.figures()["file_broken"] == 1

    file_of(tmp_path, with_key(first))
    tenants.look()
    assert tenants.figures()["file_broken"] == 0
    assert tenants.of(bearer(first)).name == "acme"


def _not_foreseen(path: Path) -> None:
    raise RuntimeError(path)


def test_the_file_is_looked_at_while_the_gateway_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants_module, "LOOK_EACH_S", 0.01)
    first, second = new_key(), new_key()

    async def scenario() -> None:
        tenants = Tenants(file_of(tmp_path, with_key(first)))
        await tenants.start()
        file_of(tmp_path, with_key(second))
        async with asyncio.timeout(30):
            while tenants.figures()["file_reads"] < 2:
                await asyncio.sleep(0.01)
        assert tenants.of(bearer(second)).name == "acme"

        with monkeypatch.context() as patch:
            patch.setattr(tenants_module, "read_tenants", _not_foreseen)
            file_of(tmp_path, with_key(first))
            async with asyncio.timeout(30):
                while not tenants.figures()["file_broken"]:
                    await asyncio.sleep(0.01)
        file_of(tmp_path, with_key(first))
        async with asyncio.timeout(30):
            while tenants.figures()["file_reads"] < 3:
                await asyncio.sleep(0.01)
        assert tenants.of(bearer(first)).name == "acme"
        await tenants.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())
