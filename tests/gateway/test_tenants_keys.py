"""`proteus keys`: what is printed once, what is stored, and that nothing else in the file changes."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from proteus.cli.commands import app
from proteus.cli.keys import write
from proteus.gateway.tenancy.tenants import Tenants

RUNNER = CliRunner()
SHA = "sha256:" + "0" * 64


def run(*words: str, given: str | None = None, code: int = 0) -> str:
    result = RUNNER.invoke(app, ["keys", *words], input=given)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.output


def added(file: Path, tenant: str, *more: str) -> str:
    return run("new", tenant, "--file", str(file), *more).splitlines()[0]


def test_a_key_that_is_stored_nowhere_comes_with_the_line_to_store() -> None:
    result = RUNNER.invoke(app, ["keys", "new", "acme"])
    key, line = result.stdout.strip(), result.stderr
    assert key not in line
    digest = run("hash", given=key + "\n").strip()
    assert f'[tenants.acme]: keys = ["{digest}"]' in line


@pytest.mark.parametrize(
    "before",
    [
        None,
        "",
        "# ours\n",
        "# no end of line",
        "[tenants.acme]",
        "[tenants.acme] # us\nweight = 2 # two\n",
        "[tenants.acme]\nkeys = []\n",
        "[tenants.acme]\nkeys = [\n  # none yet\n]\n",
        f'[tenants.acme]\nkeys = ["{SHA}"] # the old one\n\n[tenants.other]\nkeys = []\n',
        f'[tenants.acme]\nweight = 2\n  keys = [\n    "{SHA}", # old\n  ]\n[tenants.acme.in_flight]\nrequests = 1\n',
        "[tenants.other]\nkeys = []\n[tenants.acme.in_flight]\nrequests = 1\n[tenants.acme]\nweight = 2\n",
        "[tenants.acme.in_flight]\nrequests = 1\n",
        "[tenants.acmeb]\nkeys = []\n",
    ],
)
def test_a_key_comes_into_the_file_and_all_else_stays(before: str | None, tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    if before is not None:
        file.write_text(before)
    key = added(file, "acme", "--name", "new-one")
    assert Tenants(file).of(f"Bearer {key}".encode()).key == "new-one"
    after = file.read_text()
    lines = [line for line in (before or "").splitlines() if "keys" not in line]
    assert [line for line in after.splitlines() if line in lines] == lines
    assert key not in after
    assert [path.name for path in tmp_path.iterdir()] == ["tenants.toml"]


def test_several_keys_of_one_tenant_are_all_good(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    made = [added(file, tenant) for tenant in ("acme", "acme", "bolt", "acme")]
    tenants = Tenants(file)
    owners = [tenants.of(f"Bearer {key}".encode()).name for key in made]
    assert owners == ["acme", "acme", "bolt", "acme"]


@pytest.mark.parametrize(
    "before",
    [
        "tenants.acme = { weight = 2 }\n",
        f'tenants.acme.keys = ["{SHA}"]\n',
        f'["tenants"."acme"]\nkeys = ["{SHA}"]\n',
        'x = """\n[tenants.acme]\nkeys = []\n"""\n',
        "tenants = 1\n",
        "[tenants.acme]\nkeys = 1\n",
        "[tenants",
    ],
)
def test_a_file_of_another_form_is_left_as_it_is(before: str, tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text(before)
    output = run("new", "acme", "--file", str(file), code=2)
    assert "pk-" not in output
    assert file.read_text() == before


def test_a_new_file_is_its_owners_alone_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    new, old = tmp_path / "new.toml", tmp_path / "old.toml"
    old.write_text("[tenants.acme]\n")
    old.chmod(0o640)
    for file in (new, old):
        added(file, "acme")
    assert [stat.S_IMODE(file.stat().st_mode) for file in (new, old)] == [0o600, 0o640]


def test_a_file_stays_its_owners_whoever_adds_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda handle, user, group: given.append((user, group)))
    file = tmp_path / "tenants.toml"
    added(file, "acme")
    assert given == [], "a new one is of who makes it"
    added(file, "acme")
    assert given == [(file.stat().st_uid, file.stat().st_gid)]


def test_keys_that_are_added_at_once_are_all_there(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: write(file, f"t{number % 3}", f'"sha256:{number:064x}"'), range(24)))
    assert len(json.loads(run("list", str(file), "--json"))) == 24


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real.toml").write_text("[tenants.acme]\n")
    (tmp_path / "link.toml").symlink_to("real.toml")
    added(tmp_path / "link.toml", "acme")
    assert (tmp_path / "link.toml").is_symlink()
    assert "keys" in (tmp_path / "real.toml").read_text()


def test_what_no_file_may_have_is_refused_before_a_key_is_made() -> None:
    for words in (("A b",), ("acme", "--name", 'x"]')):
        assert "pk-" not in run("new", *words, code=1)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert "cannot be written" in run("new", "acme", "--file", str(tmp_path / "none" / "t.toml"), code=2)


def test_the_list_tells_each_key_and_whether_it_has_expired(tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    added(file, "acme", "--name", "old", "--expires", "2020-01-02")
    added(file, "acme", "--name", "new")
    rows = json.loads(run("list", str(file), "--json"))
    assert [(row["key"], row["expires"], row["expired"]) for row in rows] == [
        ("new", None, False),
        ("old", "2020-01-02 00:00", True),
    ]
    assert "(expired)" in run("list", str(file))
    assert tomllib.loads(file.read_text())["tenants"]["acme"]["keys"][1]["name"] == "old"


@pytest.mark.parametrize("given", ["", "\n", "pk-short\n", "x" * 100_000])
def test_what_is_no_key_has_no_digest(given: str) -> None:
    assert "that is no key" in run("hash", given=given, code=2)
