from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus.errors import FetchFailed
from proteus.media.target import MAX_URL_CHARS, Target, check_url, redirected
from tests.media.hostile import limits_with

FIRST = Target("http", "cdn.test", 80, "/a/b.png?q")
ALLOWED = {
    "https://cdn.test": Target("https", "cdn.test", 443, "/"),
    "HTTP://CDN.Test./A.png": Target("http", "cdn.test", 80, "/A.png"),
    "https://cdn.test:80/?a=b&c=%20#d@e": Target("https", "cdn.test", 80, "/?a=b&c=%20"),
    "https://cdn.test?@evil.test": Target("https", "cdn.test", 443, "/?@evil.test"),
    "https://cdn.test#@evil.test": Target("https", "cdn.test", 443, "/"),
    "https://cdn.test//evil.test/..;/": Target("https", "cdn.test", 443, "//evil.test/..;/"),
    "https://a.b.cdn.test/": Target("https", "a.b.cdn.test", 443, "/"),
    "https://xn--bcher-kva.cdn.test:/": Target("https", "xn--bcher-kva.cdn.test", 443, "/"),
}
CHARACTERS, SCHEME, NAME, HOST, PORT = (
    "characters that it may not hold",
    "scheme is not allowed",
    "host is no name",
    "host is not allowed",
    "port is not allowed",
)
REFUSED = {
    "": SCHEME,
    "cdn.test/a.png": SCHEME,
    "//cdn.test/a.png": SCHEME,
    "ftp://cdn.test/": SCHEME,
    "file:///etc/passwd": SCHEME,
    "javascript://cdn.test/%250aalert(1)": SCHEME,
    " https://cdn.test/": CHARACTERS,
    "https://cdn.test/ ": CHARACTERS,
    "https://cdn.test/\n": CHARACTERS,
    "ht\ntps://cdn.test/": CHARACTERS,
    "https://cdn.test\\@evil.test/": CHARACTERS,
    "https://cdn.test/\x00": CHARACTERS,
    "https://cdn.test/\x7f": CHARACTERS,
    "https://cdn.test/%00": CHARACTERS,
    "https://cdn.test/%0D%0AX:%20y": CHARACTERS,
    "https://cdn.test/%0aX": CHARACTERS,
    "https://bücher.cdn.test/": CHARACTERS,
    "https://cdn。test/": CHARACTERS,
    "https://ⅽdn.test/": CHARACTERS,
    "https://cdn.test/ä": CHARACTERS,
    "https:///a.png": NAME,
    "https:cdn.test": NAME,
    "https://.cdn.test/": NAME,
    "https://a..cdn.test/": NAME,
    "https://cdn.test../": NAME,
    "https://*.cdn.test/": NAME,
    "https://%63dn.test/": NAME,
    "https://cdn.test%00.evil.test/": CHARACTERS,
    "https://cdn.test%2eevil.test/": NAME,
    f"https://{'a' * 64}.cdn.test/": NAME,
    "https://127.0.0.1/": NAME,
    "https://127.1/": NAME,
    "https://2130706433/": NAME,
    "https://0x7f000001/": NAME,
    "https://0x7f.1/": NAME,
    "https://127.0.0.0x1/": NAME,
    "https://0177.0.0.01/": NAME,
    "https://127.0.0.1./": NAME,
    "https://[::1]/": NAME,
    "https://[::ffff:127.0.0.1]/": NAME,
    "https://[fe80::1%25eth0]/": NAME,
    "https://[::1].cdn.test/": NAME,
    "https://[cdn.test]/": "cannot be read",
    "https://[::1/": "cannot be read",
    "https://cdn.test:99999/": "cannot be read",
    "https://cdn.test:8x/": "cannot be read",
    "https://cdn.test:-80/": "cannot be read",
    "https://me@cdn.test/": "name or a password",
    "https://me:secret@cdn.test/": "name or a password",
    "https://@cdn.test/": "name or a password",
    "https://cdn.test@evil.test/": "name or a password",
    "https://evil.test/": HOST,
    "https://cdn.test.evil.test/": HOST,
    "https://xcdn.test/": HOST,
    "https://test/": HOST,
    "https://cdn.test:0/": PORT,
    "https://cdn.test:22/": PORT,
    f"https://cdn.test/{'a' * MAX_URL_CHARS}": "too long",
}


@pytest.mark.parametrize("url", ALLOWED)
def test_allowed_urls_and_what_is_read_in_them(url: str) -> None:
    assert check_url(url, limits_with()) == ALLOWED[url]


@pytest.mark.parametrize("url", REFUSED)
def test_other_urls_are_refused_with_the_reason(url: str) -> None:
    with pytest.raises(FetchFailed, match=REFUSED[url]) as caught:
        check_url(url, limits_with())
    assert "fix: " in str(caught.value)


def test_a_name_with_a_star_is_not_the_name_itself_and_an_address_is_never_a_name() -> None:
    limits = limits_with().model_copy(update={"hosts": ["*.cdn.test", "127.0.0.1", "*.0.1"]})
    for url in ("https://cdn.test/", "https://127.0.0.1/", "https://10.0.0.1/"):
        with pytest.raises(FetchFailed):
            check_url(url, limits)


ODD = st.text(st.sampled_from(list("/:@?#[]%.\\cdntes0x1A \t\n")), max_size=30)


@given(st.sampled_from(["https://", "http://cdn.test", "https://cdn.test:443", "//", ""]), ODD | st.text(max_size=20))
def test_any_text_is_an_allowed_target_or_our_error(start: str, rest: str) -> None:
    for check in (
        lambda: check_url(start + rest, limits_with()),
        lambda: redirected(FIRST, start + rest, limits_with()),
    ):
        try:
            target = check()
        except FetchFailed:
            continue
        assert target.host == "cdn.test" or target.host.endswith(".cdn.test")
        assert target.port in (80, 443)
        assert target.path.startswith("/")
        assert "#" not in target.path
