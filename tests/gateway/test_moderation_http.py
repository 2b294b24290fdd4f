"""An endpoint is believed only where it says exactly what it may; what it is sent is the subject and nothing else."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from pydantic import ValidationError

from proteus.gateway.moderation.endpoint import MAX_ANSWER_BYTES, HttpCheck
from proteus.gateway.moderation.subject import CheckFailed, Shown, Subject, Verdict, believed
from proteus.limits_gateway import Moderation as Settings
from tests.gateway.endpoint import Endpoint, answered, endpoint

SUBJECT = Subject(
    when="before",
    tenant="acme",
    request_id="f00d",
    texts=("one", 'two "quoted"\n'),
    pictures=tuple(
        Shown(data=bytes([number]) * size, digest=f"{number:064x}", format="png", width_px=8, height_px=9)
        for number, size in ((1, 10), (2, 400_000))
    ),
)
LIES = [
    answered(b"{"),
    answered(b""),
    answered(b"\xff\xfe"),
    answered([]),
    answered({}),
    answered({"verdict": "maybe"}),
    answered({"verdict": "allow", "why": "x"}),
    answered({"verdict": "allow", "pictures": [0]}),
    answered({"verdict": "refuse"}),
    answered({"verdict": "refuse", "category": "two words"}),
    answered({"verdict": "refuse", "category": "x" * 65}),
    answered({"verdict": "refuse", "category": "a\nb"}),
    answered({"verdict": "refuse", "category": 7}),
    answered({"verdict": "blur", "category": "faces"}),
    answered({"verdict": "blur", "category": "faces", "pictures": [2]}),
    answered({"verdict": "blur", "category": "faces", "pictures": [-1]}),
    answered({"verdict": "blur", "category": "faces", "pictures": [True]}),
    answered({"verdict": "blur", "category": "faces", "pictures": list(range(2_000))}),
    answered({"verdict": "allow"}, "500 Internal Server Error"),
    answered({"verdict": "allow"}, "204 No Content"),
    answered({"verdict": "allow"}, "302 Found", "Location: http://127.0.0.1:1/allow"),
    answered(b" " * MAX_ANSWER_BYTES + b'{"verdict": "allow"}'),
    b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000,
    b"SSH-2.0-nobody\r\n",
    b"",
]


def settings(url: str, **changed: Any) -> Settings:
    given = {"url": url, "before": True, "after": True, "timeout_ms": 2_000, "on_failure": "refuse", "max_at_once": 4}
    return Settings.model_validate(given | changed)


def checked(where: str, subject: Subject = SUBJECT) -> Verdict:
    async def run() -> Verdict:
        check = HttpCheck(settings(where))
        try:
            async with asyncio.timeout(5):
                return believed(await check.check(subject), subject)
        finally:
            await check.close()

    return asyncio.run(run())


def asked(answer: bytes) -> tuple[Verdict, Endpoint]:
    with endpoint(answer) as there:
        return checked(there.url), there


@pytest.mark.parametrize(
    ("document", "verdict"),
    [
        ({"verdict": "allow"}, Verdict()),
        ({"verdict": "allow", "category": "", "pictures": []}, Verdict()),
        ({"verdict": "refuse", "category": "violence"}, Verdict(refused=True, category="violence")),
        (
            {"verdict": "blur", "category": "faces", "pictures": [1, 0, 1]},
            Verdict(blurred=frozenset({0, 1}), category="faces"),
        ),
    ],
)
def test_a_verdict_is_taken(document: dict[str, Any], verdict: Verdict) -> None:
    assert asked(answered(document))[0] == verdict


def test_the_endpoint_sees_the_subject_and_nothing_else() -> None:
    _, there = asked(answered({"verdict": "allow"}))
    assert there.subjects == [
        {
            "version": 1,
            "when": "before",
            "tenant": "acme",
            "request_id": "f00d",
            "texts": ["one", 'two "quoted"\n'],
            "pictures": [
                {
                    "digest": picture.digest,
                    "format": "png",
                    "width_px": 8,
                    "height_px": 9,
                    "data": base64.b64encode(picture.data).decode(),
                }
                for picture in SUBJECT.pictures
            ],
        }
    ]


@pytest.mark.parametrize("answer", LIES, ids=range(len(LIES)))
def test_a_lie_is_no_verdict(answer: bytes) -> None:
    with pytest.raises(CheckFailed) as failed:
        asked(answer)
    assert "quoted" not in str(failed.value)
    assert str(failed.value).isprintable()


def test_an_endpoint_that_is_not_there_is_no_verdict() -> None:
    with pytest.raises(CheckFailed, match="ConnectError"):
        checked("http://127.0.0.1:1/check")


def test_a_connection_that_ended_is_made_anew() -> None:
    async def run(url: str) -> list[Verdict]:
        check = HttpCheck(settings(url))
        try:
            return [await check.check(SUBJECT) for _ in range(3)]
        finally:
            await check.close()

    kept = answered({"verdict": "allow"}).replace(b"Connection: close\r\n", b"")  # and yet the endpoint ends it
    with endpoint(kept) as there:
        assert asyncio.run(run(there.url)) == [Verdict()] * 3


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"url": ""}, "one of both"),
        ({"entry_point": "also"}, "one of both"),
        ({"url": "http://checks.internal:9000/check"}, "add it to hosts"),
        ({"url": "http://169.254.169.254/"}, "add it to hosts"),
        ({"url": "ftp://127.0.0.1/"}, "no http or https URL"),
        ({"url": "http://127.0.0.1:70000/"}, "no port"),
        ({"url": "http://key@127.0.0.1/"}, "no http or https URL"),
        ({"url": "http://127.0.0.1/\r\nX: y"}, "no http or https URL"),
        ({"on_failure": "guess"}, "on_failure"),
        ({"timeout_ms": 0}, "timeout_ms"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        settings(**{"url": "http://127.0.0.1:9000/check"} | fields)


def test_another_machine_has_to_be_named() -> None:
    url = "https://checks.internal:9000/check"
    assert settings(url, hosts=["checks.internal"]).url == url
