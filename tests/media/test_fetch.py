"""The fetcher against a hostile server on loopback, which stands for the internet here."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from proteus.errors import FetchFailed, MediaTooLarge, ProteusError, QueueFull
from proteus.media.fetch import Fetcher
from proteus.media.target import MAX_URL_CHARS
from tests.media.hostile import (
    OK,
    REMOTE,
    Play,
    Visit,
    answer,
    by_path,
    drip,
    endless,
    hostile,
    limits_with,
    raw,
    redirect,
    reset,
    silent,
)

PNG = b"\x89PNG not really"
MAX_BYTES = 65_536
MANY_BYTES = 1_000_000  # more than any play gets rid of, what lies in the kernel's buffers included
CHUNKED = "Transfer-Encoding: chunked"
START = f"{OK}\r\n".encode()
ADDRESSES = {
    "cdn.test": ["127.0.0.1"],
    "other.cdn.test": ["127.0.0.1"],
    "metadata.cdn.test": ["169.254.169.254"],
    "mapped.cdn.test": ["::ffff:169.254.169.254"],
    "inside.cdn.test": ["10.0.0.1"],
    "both.cdn.test": ["127.0.0.1", "10.0.0.1"],
    "six.cdn.test": ["127.0.0.1", "fd00::1"],
    "zone.cdn.test": ["::1%lo"],
}


async def resolve(host: str, port: int) -> Sequence[str]:
    return ADDRESSES.get(host, [])


async def attempt(fetcher: Fetcher, url: str) -> bytes | ProteusError:
    try:
        return await fetcher.fetch(url)
    except ProteusError as error:
        return error


def visit(
    play: Play,
    host: str = "cdn.test",
    *,
    path: str = "/a.png",
    scheme: str = "http",
    server: dict[str, Any] | None = None,
    tls: ssl.SSLContext | None = None,
    **changes: Any,
) -> tuple[bytes | ProteusError, list[Visit]]:
    """What became of one URL, and the connections that the server saw."""

    async def scenario() -> tuple[bytes | ProteusError, list[Visit]]:
        async with hostile(play, **server or {}) as remote:
            fetcher = Fetcher(limits_with(ports=[remote.port], **changes), MAX_BYTES, resolve=resolve, tls=tls)
            return await attempt(fetcher, f"{scheme}://{host}:{remote.port}{path}"), remote.visits

    return asyncio.run(scenario())


def with_port(place: str) -> Play:
    """A redirect to `place`, with PORT in it replaced by the server's own."""

    async def play(visit: Visit) -> None:
        port = visit.writer.get_extra_info("sockname")[1]
        await redirect(place.replace("PORT", str(port)))(visit)

    return play


GOOD = {
    "with a length": answer(OK, f"Content-Length: {len(PNG)}", body=PNG),
    "until it closes": answer(OK, body=PNG),
    "in chunks": answer(
        OK, CHUNKED, body=b"5\r\n" + PNG[:5] + b"\r\n%x\r\n" % len(PNG[5:]) + PNG[5:] + b"\r\n0\r\n\r\n"
    ),
    "after two hints": answer("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + OK, body=PNG),
    "named as it is": answer(OK, "Content-Encoding: identity", body=PNG),
    "of an old server": answer("HTTP/1.0 200 OK", body=PNG),
    "with more than announced": answer(OK, f"Content-Length: {len(PNG)}", body=PNG + b"X" * 500),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_picture_comes_as_it_was_sent(name: str) -> None:
    assert visit(GOOD[name])[0] == PNG


def test_the_largest_picture_may_come() -> None:
    body = b"x" * MAX_BYTES
    assert visit(answer(OK, body=body))[0] == body
    error, _ = visit(answer(OK, body=body + b"x"))
    assert isinstance(error, MediaTooLarge)


LARGE, BESIDE, IN_TIME, TALK = "too large", "too much beside", "did not come in time", "could not be talked to"
BAD: dict[str, tuple[Play, str]] = {
    "body without end": (endless(b"x" * 65_536, START + b"\r\n"), LARGE),
    "chunks without end": (endless(b"1000\r\n" + b"x" * 4096 + b"\r\n", START + f"{CHUNKED}\r\n\r\n".encode()), LARGE),
    "chunk names without end": (endless(b"x" * 65_536, START + f"{CHUNKED}\r\n\r\n1;".encode()), TALK),
    "trailers without end": (endless(b"X: y\r\n" * 9000, START + f"{CHUNKED}\r\n\r\n0\r\n".encode()), TALK),
    "headers without end": (endless(f"X: {REMOTE}\r\n".encode() * 2000, START), BESIDE),
    "a header without end": (endless(b"x" * 65_536, START + b"X: "), BESIDE),
    "a status without end": (endless(b"x" * 65_536, b"HTTP/1.1 200 "), BESIDE),
    "hints without end": (endless(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000), BESIDE),
    "5 MB of headers": (answer(OK, *[f"X-{number}: {'y' * 1000}" for number in range(5000)], body=PNG), BESIDE),
    "a length that is too large": (answer(OK, f"Content-Length: {MAX_BYTES + 1}", then=silent), LARGE),
    "a length of 20 digits": (answer(OK, f"Content-Length: {'9' * 20}", then=silent), LARGE),
    "a length with zeros in front": (answer(OK, f"Content-Length: {'0' * 12}{MAX_BYTES + 1}", then=silent), LARGE),
    "a length of 5000 digits": (answer(OK, f"Content-Length: {'9' * 5000}", body=PNG), TALK),
    "a length below zero": (answer(OK, "Content-Length: -1", body=PNG), TALK),
    "two lengths": (answer(OK, "Content-Length: 5", "Content-Length: 7", body=PNG), TALK),
    "less than announced": (answer(OK, "Content-Length: 500", body=PNG), TALK),
    "a chunk cut short": (answer(OK, CHUNKED, body=b"ff\r\n" + PNG), TALK),
    "a chunk of no size": (answer(OK, CHUNKED, body=f"{REMOTE}\r\n".encode()), TALK),
    "a gzip bomb": (
        answer(OK, "Content-Encoding: gzip", body=gzip.compress(bytes(10_000_000))),
        "sent it packed; limit: no Content-Encoding",
    ),
    "two encodings": (answer(OK, "Content-Encoding: br", "Content-Encoding: identity", body=PNG), "packed"),
    "a transfer encoding": (answer(OK, "Transfer-Encoding: gzip, chunked", body=gzip.compress(PNG)), TALK),
    "no HTTP": (raw(f"<html>{REMOTE}</html>\r\n\r\n".encode()), TALK),
    "zeros": (raw(bytes(1000)), TALK),
    "a header that is none": (answer(OK, REMOTE, body=PNG), TALK),
    "nothing": (raw(b""), TALK),
    "a reset": (reset, TALK),
    "another protocol": (answer("HTTP/1.1 101 Go", "Upgrade: websocket", "Connection: Upgrade"), TALK),
    "a redirect to nowhere": (answer("HTTP/1.1 302 Found", body=PNG), "answered 302 and no one place"),
    "a redirect to two places": (redirect("/b.png", "Location: /c.png"), "answered 302 and no one place"),
    "a redirect to no URL": (redirect("http://[::1"), "after a redirect: .* URL's scheme"),
    "a redirect to itself": (redirect("#again"), r"leads on and on; limit: \[fetch\] max_redirects = 2"),
    "a redirect in a circle": (redirect("/b.png"), "leads on and on"),
}
for status in (204, 206, 300, 304, 400, 401, 404, 407, 500, 599):
    BAD[str(status)] = (
        answer(f"HTTP/1.1 {status} {REMOTE}", "Location: /b.png", body=PNG),
        f"answered {status}; limit: 200",
    )


@pytest.mark.parametrize("name", BAD)
def test_hostile_answers_are_refused_in_our_words_and_cost_little(name: str) -> None:
    play, words = BAD[name]
    error, visits = visit(play)
    with pytest.raises((FetchFailed, MediaTooLarge), match=words) as caught:
        raise error if isinstance(error, ProteusError) else AssertionError("it was taken")
    assert "fix: " in str(caught.value)
    assert REMOTE not in str(caught.value)
    assert len(visits) <= 3
    assert all(one.sent_bytes < MANY_BYTES for one in visits)


SLOW = {
    "says nothing": silent,
    "drips a body": drip(b"x", START + b"\r\n"),
    "drips headers": drip(b"X: y\r\n", START),
    "drips one header": drip(b"x", START + b"X: "),
    "drips hints": drip(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "redirects, then says nothing": by_path({"/a.png": redirect("/b.png"), "/b.png": silent}),
}


@pytest.mark.parametrize("name", SLOW)
def test_slow_hosts_have_the_whole_time_and_no_more(name: str) -> None:
    error, _ = visit(SLOW[name], total_timeout_ms=150)
    assert "did not come in time; limit: [fetch] total_timeout_ms = 150; fix: " in str(error)


def test_crumbs_leave_the_loop_to_others_and_end() -> None:
    crumbs = endless(b"1\r\nx\r\n" * 4000, START + f"{CHUNKED}\r\n\r\n".encode())

    async def scenario() -> tuple[bytes | ProteusError, int]:
        turns = 0
        async with hostile(crumbs) as remote:
            fetcher = Fetcher(limits_with(ports=[remote.port]), MAX_BYTES, resolve=resolve)
            task = asyncio.create_task(attempt(fetcher, f"http://cdn.test:{remote.port}/"))
            while not task.done():
                await asyncio.sleep(0)
                turns += 1
        return task.result(), turns

    end, turns = asyncio.run(scenario())
    assert BESIDE in str(end)
    assert turns > 10_000


PLACES = {
    "http://169.254.169.254/latest/meta-data/": "URL's host is no name",
    "http://metadata.cdn.test:PORT/": "not public",
    "http://mapped.cdn.test:PORT/": "not public",
    "http://inside.cdn.test:PORT/": "not public",
    "http://evil.test:PORT/": "URL's host is not allowed",
    "//evil.test:PORT/": "URL's host is not allowed",
    "http://cdn.test/": "URL's port is not allowed",
    "http://me:secret@cdn.test:PORT/": "carries a name or a password",
    "file:///etc/passwd": "URL's scheme is not allowed",
    "gopher://cdn.test:PORT/": "URL's scheme is not allowed",
    "data:image/png;base64,AAAA": "URL's scheme is not allowed",
    "ht\ttp://cdn.test:PORT/": "characters that it may not hold",
    "/a b": "characters that it may not hold",
    "/\\evil.test/": "characters that it may not hold",
    "/%0d%0aX:y": "characters that it may not hold",
    "/\xe9": "characters that it may not hold",
    "/" + "x" * MAX_URL_CHARS: "too long",
}


@pytest.mark.parametrize("place", PLACES)
def test_a_redirect_is_checked_like_a_first_url(place: str) -> None:
    error, visits = visit(with_port(place))
    assert isinstance(error, FetchFailed)
    assert PLACES[place] in str(error)
    assert len(visits) == 1


@pytest.mark.parametrize("place", ["/b.png", "b.png", "//cdn.test:PORT/b.png", "HTTP://OTHER.CDN.TEST.:PORT/b.png?#x"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_an_allowed_redirect_is_followed_without_cookies(place: str, status: int) -> None:
    async def first(visit: Visit) -> None:
        port = visit.writer.get_extra_info("sockname")[1]
        await redirect(place.replace("PORT", str(port)), "Set-Cookie: a=b", status=status)(visit)

    body, visits = visit(by_path({"/a.png?q=1": first, "/b.png": GOOD["in chunks"]}), path="/a.png?q=1#part")
    assert body == PNG
    assert len(visits) == 2
    for one in visits:
        names = {line.partition(":")[0] for line in one.head.splitlines()[1:] if line}
        assert names == {"Host", "Accept", "Accept-Encoding", "User-Agent", "Connection"}


def test_neither_proxies_nor_netrc_of_the_environment_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    (tmp_path / ".netrc").write_text("machine cdn.test login me password secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    body, (seen,) = visit(GOOD["with a length"])
    assert body == PNG
    assert "authorization" not in seen.head.lower()


@pytest.mark.parametrize("host", ["metadata", "mapped", "inside", "both", "six", "zone"])
def test_every_address_of_a_host_must_be_allowed(host: str) -> None:
    error, visits = visit(GOOD["with a length"], f"{host}.cdn.test")
    assert "has an address that is not public; limit: [fetch] private_networks" in str(error)
    assert visits == []


def test_a_host_without_addresses_is_not_known() -> None:
    assert "host is not known" in str(visit(silent, "nowhere.cdn.test")[0])


def test_a_second_answer_of_the_resolver_moves_nothing() -> None:
    asked = []

    async def rebinding(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.2"] if len(asked) == 1 else ["127.0.0.1"]

    async def scenario() -> tuple[bytes | ProteusError, bytes | ProteusError, int, int]:
        async with (
            hostile(GOOD["with a length"]) as inside,
            hostile(GOOD["with a length"], host="127.0.0.2", port=inside.port) as outside,
        ):
            limits = limits_with(ports=[inside.port], private_networks=["127.0.0.2/32"])
            fetcher = Fetcher(limits, MAX_BYTES, resolve=rebinding)
            url = f"http://cdn.test:{inside.port}/"
            first = await attempt(fetcher, url)
            assert asked == ["cdn.test"]
            return first, await attempt(fetcher, url), len(inside.visits), len(outside.visits)

    first, second, to_inside, to_outside = asyncio.run(scenario())
    assert (first, to_outside) == (PNG, 1)
    assert isinstance(second, FetchFailed)
    assert to_inside == 0


def test_no_more_at_once_than_allowed_and_waiting_counts() -> None:
    async def scenario() -> tuple[int, list[bytes | ProteusError]]:
        async with hostile(silent) as remote:
            limits = limits_with(ports=[remote.port], max_at_once=2, total_timeout_ms=150)
            fetcher = Fetcher(limits, MAX_BYTES, resolve=resolve)
            ends = await asyncio.gather(*[attempt(fetcher, f"http://cdn.test:{remote.port}/") for _ in range(6)])
            return len(remote.visits), list(ends)

    visits, ends = asyncio.run(scenario())
    assert visits <= 4  # a seat that frees with the last moment may be taken, in vain
    begun = [end for end in ends if isinstance(end, FetchFailed)]
    assert len(begun) >= visits
    assert all("total_timeout_ms" in str(end) for end in begun)
    others = [end for end in ends if end not in begun]  # not the client's fault: to come back later is all it takes
    assert all(isinstance(end, QueueFull) and "[fetch] max_at_once = 2" in str(end) for end in others)
    assert others


@pytest.mark.parametrize(
    ("play", "scheme", "listens"),
    [
        (silent, "http", True),
        (answer(OK, "Content-Length: 500", body=PNG, then=silent), "http", True),
        (drip(b"X: y\r\n", START), "http", True),
        (silent, "https", False),
    ],
    ids=["before the head", "in the body", "in the head", "in the handshake of TLS"],
)
def test_a_cancelled_fetch_closes_its_connection_and_leaves_its_seat(play: Play, scheme: str, listens: bool) -> None:
    async def scenario() -> None:
        async with hostile(play, listens=listens) as remote:
            fetcher = Fetcher(limits_with(ports=[remote.port], max_at_once=1), MAX_BYTES, resolve=resolve)
            for number in range(2):
                task = asyncio.create_task(fetcher.fetch(f"{scheme}://cdn.test:{remote.port}/"))
                while len(remote.visits) <= number or (listens and not remote.visits[number].head):
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await asyncio.wait_for(remote.visits[number].gone.wait(), 5)

    asyncio.run(scenario())


def test_off_while_no_host_is_named() -> None:
    error, visits = visit(silent, hosts=[])
    assert (
        str(error)
        == "fetch_failed: pictures by URL are off; limit: [fetch] hosts = []; fix: send the picture's bytes instead"
    )
    assert visits == []


# Of cdn.test, signed by itself, with its key; trusted by nobody but these tests.
CERTIFICATE = Path(__file__).parent / "tls" / "cdn.pem"


def by_tls() -> dict[str, Any]:
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(CERTIFICATE, CERTIFICATE.with_suffix(".key"))
    return {"scheme": "https", "server": {"tls": served}}


def test_tls_asks_for_the_name_of_the_url_and_trusts_nobody_else() -> None:
    trust = ssl.create_default_context(cafile=str(CERTIFICATE))
    assert visit(GOOD["with a length"], tls=trust, **by_tls())[0] == PNG
    for host, tls in (("other.cdn.test", trust), ("cdn.test", None)):
        error, visits = visit(GOOD["with a length"], host, tls=tls, **by_tls())
        assert "could not be talked to" in str(error)
        assert not any(one.head for one in visits)


@pytest.mark.parametrize("name", ["body without end", "headers without end", "chunks without end", "a gzip bomb"])
def test_tls_is_bounded_alike(name: str) -> None:
    play, words = BAD[name]
    error, visits = visit(play, tls=ssl.create_default_context(cafile=str(CERTIFICATE)), **by_tls())
    with pytest.raises((FetchFailed, MediaTooLarge), match=words):
        raise error if isinstance(error, ProteusError) else AssertionError("it was taken")
    assert all(one.sent_bytes < MANY_BYTES for one in visits)


def test_a_redirect_from_https_to_http_is_refused() -> None:
    trust = ssl.create_default_context(cafile=str(CERTIFICATE))
    error, visits = visit(with_port("http://cdn.test:PORT/"), tls=trust, **by_tls())
    assert "leads from https to http" in str(error)
    assert len(visits) == 1


def test_a_handshake_that_never_ends_has_the_time_to_connect() -> None:
    error, visits = visit(silent, scheme="https", server={"listens": False}, connect_timeout_ms=100)
    assert "too slow; limit: [fetch] connect_timeout_ms = 100" in str(error)
    assert len(visits) == 1
