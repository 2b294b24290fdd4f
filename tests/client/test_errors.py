from __future__ import annotations

import pytest

from proteus.client import ServerError
from proteus.errors import InternalError, MediaTooLarge, ProteusError, QueueFull, Unavailable


@pytest.mark.parametrize(
    "error",
    [
        InternalError(),
        Unavailable("the stage vision_encoder is restarting"),
        QueueFull("64 requests are waiting", limit="[llm] max_queue = 64"),
        QueueFull("64 requests are waiting", limit="[llm] max_queue = 64", retry_after_s=2.5),
        MediaTooLarge("image is 9x9 = 81 px; too many", limit="[image] max_pixels = 80", fix="send less; or none"),
    ],
)
def test_every_part_of_a_server_error_survives_the_wire(error: ProteusError) -> None:
    parsed = ServerError.parse(str(error))
    assert (parsed.code, parsed.message, parsed.limit, parsed.fix) == (error.code, error.what, error.limit, error.fix)
    assert str(parsed) == str(error)


@pytest.mark.parametrize("text", ["", "Request for unknown model: 'chat' is not found", "Failed: x", ": ", "a\nb"])
def test_a_text_without_a_code_of_ours_is_kept_whole(text: str) -> None:
    parsed = ServerError.parse(text)
    assert (parsed.code, parsed.message) == ("triton", text)


def test_a_request_id_that_triton_puts_first_is_dropped() -> None:
    parsed = ServerError.parse("[request id: <id_unknown>] queue_full: 3 are waiting")
    assert (parsed.code, parsed.message) == ("queue_full", "3 are waiting")


def test_the_hint_when_to_come_back_is_a_number() -> None:
    full = QueueFull("64 requests wait", limit="[admission.queues] text.max_queue = 64", retry_after_s=2.34)
    assert ServerError.parse(str(full)).retry_after_s == 2.3
    assert ServerError.parse(str(QueueFull("full", limit="1"))).retry_after_s is None
    assert ServerError.parse("invalid_request: no").retry_after_s is None
