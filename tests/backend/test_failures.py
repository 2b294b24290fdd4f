from __future__ import annotations

import pytest

from proteus.backend.failures import BY_CODE, revive
from proteus.errors import DeadlineExceeded, InternalError, ProteusError, QueueFull, Unavailable


@pytest.mark.parametrize("kind", BY_CODE.values())
@pytest.mark.parametrize("prefix", ["", "in ensemble 'image_tokens', ", "Failed to process the request(s): "])
def test_our_own_errors_survive_the_way_through_triton(kind: type[ProteusError], prefix: str) -> None:
    error = kind("what is wrong: 9,000 px", limit="[image] max_pixels = 1", fix="send less; or nothing")
    revived = revive(prefix + str(error), "image_tokens")
    assert type(revived) is kind
    assert str(revived) == str(error)


def test_error_without_limit_or_fix_survives_too() -> None:
    assert str(revive(str(Unavailable("gone")), "llm")) == "unavailable: gone"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Exceeds maximum queue size", QueueFull),
        ("Stub process 'llm_0_0' is not healthy.", Unavailable),
        ("Request for unknown model: 'llm' is not ready", Unavailable),
        ("Request timeout expired", DeadlineExceeded),
        ("Failed to process: KeyError at 0x7f00", InternalError),
        ("internal: the server could not finish this request", InternalError),
    ],
)
def test_tritons_own_errors_get_a_text_that_a_client_may_see(text: str, kind: type[ProteusError]) -> None:
    revived = revive(text, "llm")
    assert type(revived) is kind
    assert "0x" not in str(revived)
