"""What goes wrong is told in OpenAI's form, with what, limit and fix."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator

import httpx
import pytest

import proteus.gateway
from proteus.client.errors import ConnectionFailed, InvalidInput, ServerError, TimedOut
from proteus.deployment import DeploymentError
from proteus.errors import InvalidRequest, MediaTooLarge, ProteusError, QueueFull
from proteus.families.family import PlanRefused
from proteus.gateway.errors import (
    STATUS_OF,
    ContentRefused,
    InvalidKey,
    NotAllowed,
    OverBudget,
    UnsupportedField,
    error_body,
    http_error,
)


@pytest.mark.parametrize(
    ("error", "status", "code", "kind"),
    [
        (InvalidRequest("n = 9", limit="8", fix="lower n"), 400, "invalid_request", "invalid_request_error"),
        (ServerError.parse("media_not_supported: 5 px"), 400, "media_not_supported", "invalid_request_error"),
        (PlanRefused("5 px"), 400, "media_not_supported", "invalid_request_error"),
        (InvalidKey("no key"), 401, "invalid_api_key", "authentication_error"),
        (NotAllowed("not yours"), 403, "not_allowed", "permission_error"),
        (MediaTooLarge("50 MP"), 413, "media_too_large", "invalid_request_error"),
        (UnsupportedField("tools"), 422, "unsupported_field", "invalid_request_error"),
        (ContentRefused("violence"), 422, "content_refused", "invalid_request_error"),
        (OverBudget("used up"), 429, "over_budget", "rate_limit_error"),
        (
            ServerError.parse("queue_full: 64 wait; limit: 64; fix: try again later"),
            429,
            "queue_full",
            "rate_limit_error",
        ),
        (ServerError.parse("deadline_exceeded: late"), 504, "deadline_exceeded", "server_error"),
        (ServerError("incomplete", "the stream ended"), 503, "unavailable", "server_error"),
        (ServerError.parse("Request for unknown model: 'chat' is not found"), 503, "unavailable", "server_error"),
        (ServerError.parse("tensor at /opt/secret/path"), 500, "internal", "server_error"),
        (ConnectionFailed("127.0.0.1:8001 refused"), 503, "unavailable", "server_error"),
        (TimedOut("600 s"), 504, "answer_timeout", "server_error"),
        (InvalidInput("no Unicode"), 400, "invalid_request", "invalid_request_error"),
        (KeyError("secret"), 500, "internal", "server_error"),
        (DeploymentError("/etc/secret.toml is broken", fix="mend it"), 500, "internal", "server_error"),
    ],
)
def test_every_failure_has_a_status_a_code_and_a_type(error: Exception, status: int, code: str, kind: str) -> None:
    found, document, _ = http_error(error)
    told = document["error"]
    assert (found, told["code"], told["type"]) == (status, code, kind)
    assert list(told) == ["message", "type", "param", "code", "limit", "fix"]
    assert json.loads(error_body(error)) == document


@pytest.mark.parametrize(
    "error",
    [ServerError.parse("tensor at /opt/secret/path"), ConnectionFailed("10.1.2.3:8001"), DeploymentError("secret")],
)
def test_what_is_not_meant_for_clients_is_not_told(error: Exception) -> None:
    assert not any(word in error_body(error).decode() for word in ("secret", "10.1.2.3"))


def test_what_limit_and_fix_stand_in_the_message_and_apart() -> None:
    told = http_error(InvalidRequest("n = 9", limit="[text] max_choices = 8", fix="lower n"))[1]["error"]
    assert told["message"] == "n = 9; limit: [text] max_choices = 8; fix: lower n"
    assert (told["limit"], told["fix"]) == ("[text] max_choices = 8", "lower n")


def test_a_field_that_is_refused_is_the_param() -> None:
    assert http_error(UnsupportedField("tools", param="tools"))[1]["error"]["param"] == "tools"


@pytest.mark.parametrize(
    ("error", "retry_after_s"),
    [
        (QueueFull("64 wait"), None),
        (QueueFull("64 wait", retry_after_s=2.5), 2.5),
        (OverBudget("used up", fix="ask for less", retry_after_s=7.0), 7.0),
        (ServerError.parse("queue_full: 64 wait; fix: try again in 2.5 s"), 2.5),
        (KeyError("x"), None),
    ],
)
def test_when_to_come_back_is_known_where_the_refusal_knows(error: Exception, retry_after_s: float | None) -> None:
    assert http_error(error)[2] == retry_after_s


def test_every_refusal_of_the_gateway_has_a_status_wherever_it_is_defined() -> None:
    def below(kind: type[ProteusError]) -> Iterator[type[ProteusError]]:
        for child in kind.__subclasses__():
            yield child
            yield from below(child)

    for module in pkgutil.walk_packages(proteus.gateway.__path__, "proteus.gateway."):
        importlib.import_module(module.name)
    ours = [kind for kind in below(ProteusError) if kind.__module__.startswith(("proteus.errors", "proteus.gateway"))]
    assert {kind.code: kind.http_status for kind in ours}.items() <= STATUS_OF.items()
    assert all(400 <= status <= 504 for status in STATUS_OF.values())


def test_a_refusal_names_what_limit_and_fix(http: httpx.Client) -> None:
    answer = http.post("/v1/chat/completions", json={"model": "demo", "messages": [{"role": "user", "content": ""}]})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error["code"], error["type"], error["fix"]) == (
        "invalid_request",
        "invalid_request_error",
        "add text or a picture",
    )
    assert error["message"].startswith("messages[0].content is empty")


def test_a_refusal_of_the_server_comes_with_its_status(http: httpx.Client) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "refuse"}]}
    answer = http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
