"""What goes wrong is told in OpenAI's form, with what, limit and fix."""

from __future__ import annotations

import httpx


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
