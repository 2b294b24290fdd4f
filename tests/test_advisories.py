"""NVIDIA's advisories: what applies to which version, and that our images have none of Triton's."""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from proteus.cli import advisories, advisories_known, advisories_page
from proteus.cli.advisories_known import KNOWN, RELEASES, WAYS, Component
from proteus.cli.commands import app
from proteus.client.errors import ConnectionFailed, InvalidInput

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "advisories.md").read_text(encoding="utf-8")


def open_in(component: Component, version: str) -> set[str]:
    return {one.cve for one in KNOWN if advisories.applies(one, {component: version})}


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["advisories", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_every_row_is_whole() -> None:
    assert len({one.cve for one in KNOWN}) == len(KNOWN)
    for one in KNOWN:
        assert re.fullmatch(r"CVE-202[4-6]-\d{4,5}", one.cve)
        assert 0 < one.score <= 10
        assert one.way in WAYS
        assert 5582 <= one.bulletin <= advisories_known.READ_UNTIL
        advisories.order(one.fixed_in)
        assert one.component != "triton" or advisories.RELEASE.fullmatch(one.fixed_in)
    assert {one.way for one in KNOWN} == set(WAYS), "no way is told that nobody takes"


@pytest.mark.parametrize(
    ("bulletin", "year"), [(5687, 2025), (5734, 2025), (5790, 2026), (5891, 2026)], ids=lambda value: str(value)
)
def test_the_address_of_a_bulletin_has_its_year(bulletin: int, year: int) -> None:
    assert "2024/CVE_index" in next(one.source for one in KNOWN if one.bulletin == 5582)
    sources = {one.source for one in KNOWN if one.bulletin == bulletin}
    assert sources == {f"https://github.com/NVIDIA/product-security/blob/main/{year}/{bulletin}/{bulletin}.md"}


@pytest.mark.parametrize(
    ("component", "version", "has", "has_not"),
    [
        ("triton", "2.51.0", {"CVE-2025-23310", "CVE-2024-53880", "CVE-2026-16497"}, set()),
        ("triton", "24.10", {"CVE-2025-23310"}, set()),
        ("triton", "25.07", {"CVE-2025-23316"}, {"CVE-2025-23310"}),
        ("triton", "26.06", {"CVE-2026-16497"}, {"CVE-2026-47627"}),
        ("triton", "2.70.0", {"CVE-2026-47627"}, {"CVE-2026-47476"}),
        ("tensorrt", "10.14.1.48", {"CVE-2026-24188", "CVE-2026-24268", "CVE-2026-65122"}, set()),
        ("tensorrt", "10.16.1.11", {"CVE-2026-24268"}, {"CVE-2026-24188"}),
        ("tensorrt", "11.0.0", {"CVE-2026-65122"}, {"CVE-2026-24268"}),
        ("tensorrt-llm", "1.2.1", {"CVE-2026-24233"}, {"CVE-2026-24205"}),
        ("tensorrt-llm", "1.2.0.post1", {"CVE-2026-24205"}, {"CVE-2026-24163"}),
        ("tensorrt-llm", "1.3.0rc16", {"CVE-2026-47472"}, {"CVE-2026-47475"}),
        ("container-toolkit", "1.16.1", {"CVE-2024-0132"}, set()),
        ("container-toolkit", "1.18.0", {"CVE-2026-24260"}, {"CVE-2025-23266"}),
    ],
)
def test_what_applies(component: Component, version: str, has: set[str], has_not: set[str]) -> None:
    found = open_in(component, version)
    assert has <= found
    assert not has_not & found


@pytest.mark.parametrize(
    ("component", "version"), [("triton", "26.10"), ("tensorrt", "11.2"), ("tensorrt-llm", "1.3.0rc17")]
)
def test_nothing_known_applies_to_the_newest(component: Component, version: str) -> None:
    assert open_in(component, version) == set()


def test_a_version_between_two_that_are_known_counts_as_the_older() -> None:
    assert advisories.release_of("2.60.0") == RELEASES["2.59"] == "25.06"
    assert list(RELEASES) == sorted(RELEASES, key=advisories.order)


@pytest.mark.parametrize("version", ["", "new", "2", "26.13", "25.7", "24.09", "1.2.3\n", "2.50.0"])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(InvalidInput):
        open_in("triton", version)


def test_images_are_built_on_a_triton_without_a_known_advisory() -> None:
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    releases = re.findall(r"^ARG TRITON\w*IMAGE=nvcr\.io/nvidia/tritonserver:(2\d\.\d\d)-", dockerfile, re.MULTILINE)
    assert len(releases) == 2
    for release in releases:
        assert open_in("triton", release) == set(), f"docker/Dockerfile: {release} has known advisories"


def test_the_page_has_every_row_and_every_way() -> None:
    assert advisories_page.written(PAGE) == PAGE, "python -m proteus.cli.advisories_page writes it"


def test_the_page_says_what_is_embedded_and_how_much_of_it_is_open() -> None:
    embedded = open_in("triton", advisories.EMBEDDED)
    worst = [one for one in KNOWN if one.cve in embedded and one.score > 9]
    assert f"{len(embedded)} of them apply to the embedded server, {len(worst)} with a score above 9" in PAGE
    llm, engines = open_in("tensorrt-llm", "1.2.1"), open_in("tensorrt", "10.14.1.48")
    assert f"{len(llm)} advisories of TensorRT-LLM and {len(engines)} of TensorRT" in PAGE


def test_the_command_lists_them_for_a_person() -> None:
    output = run()
    assert "CVE-2025-23310" in output
    assert f"{len(open_in('triton', '2.51.0'))} of {len(KNOWN)} known advisories apply to triton 2.51.0." in output
    assert "Nothing is said of tensorrt, tensorrt-llm, container-toolkit" in output
    assert "0 of" in run("26.10", "--tensorrt", "11.2", "--tensorrt-llm", "1.3.0rc17", "--container-toolkit", "1.19.1")


def test_the_command_lists_them_for_a_program() -> None:
    told = json.loads(run("26.06", "--json"))
    assert [one["cve"] for one in told["advisories"]] == ["CVE-2026-16497"]
    assert told["versions"] == {"triton": "26.06"}
    assert len(json.loads(run("--all", "--json"))["advisories"]) == len(KNOWN)


class Triton(http.server.BaseHTTPRequestHandler):
    body = b'{"name": "triton", "version": "2.69.0"}'

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def told(request: pytest.FixtureRequest) -> Iterator[str]:
    """Address of a server that answers with the bytes of the parameter."""
    handler = type("Told", (Triton,), {"body": request.param})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("told", [Triton.body], indirect=True)
def test_a_running_server_is_asked(told: str) -> None:
    assert json.loads(run("--url", told, "--json"))["versions"] == {"triton": "2.69.0"}


@pytest.mark.parametrize("told", [b"", b"[]", b'{"version": 2}', b"\xff"], indirect=True)
def test_what_is_no_triton_is_told_so(told: str) -> None:
    with pytest.raises(ConnectionFailed, match="no Triton"):
        advisories.running(told)


def test_nobody_there_and_no_address() -> None:
    with pytest.raises(ConnectionFailed, match="nothing answers"):
        advisories.running("127.0.0.1:1")
    with pytest.raises(InvalidInput, match="no address"):
        advisories.running("http://host/path")
