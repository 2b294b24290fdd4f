"""The guard around the responses to one request."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from proteus.errors import InternalError
from tests.backend import triton

NAMES = [f"proteus.backend.{name}" for name in ("tensors", "guard")]


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    module = triton.module()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield importlib.import_module(NAMES[-1])
    for name in NAMES:
        del sys.modules[name]


def test_a_last_response_that_cannot_be_made_leaves_the_stream_open_for_the_error(
    guard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tensor(name: str, array: Any) -> None:
        raise ValueError("an array of objects")

    monkeypatch.setattr(guard.pb_utils, "Tensor", tensor)
    request = triton.Request({})
    with guard.responding(request) as responses:
        responses.send({"text": np.array(["the end"])}, final=True)
    assert (request.answers, request.error, request.ended.is_set()) == ([], str(InternalError()), True)
