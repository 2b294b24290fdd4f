from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from proteus.backend.draw_documents import read_scheduling, read_settings, write_scheduling, write_settings
from proteus.errors import InvalidRequest
from proteus.generation.task import Condition, DrawTask, Settings

SETTINGS = Settings(
    width_px=64,
    height_px=96,
    steps=20,
    guidance=3.25,
    sampler="heun",
    seed=2**53 - 1,
    image_index=3,
    preview_every=5,
    max_previews_per_s=0.5,
)
TASK = DrawTask(
    request_key=b"k",
    prompt=Condition(states=np.zeros((1, 1), dtype=np.float32)),
    negative=None,
    settings=SETTINGS,
    tenant='ä"\n',
    latency_class="batch",
    deadline_s=12.0,
)


def test_what_is_written_is_read_as_it_was() -> None:
    assert read_settings(write_settings(SETTINGS)) == SETTINGS
    scheduling = read_scheduling(write_scheduling(TASK, 10.0), 10.0)
    assert (scheduling.tenant, scheduling.latency_class, scheduling.deadline_s) == ('ä"\n', "batch", 12.0)


def test_a_deadline_that_is_over_has_a_millisecond_left_and_none_stays_none() -> None:
    assert read_scheduling(write_scheduling(TASK, 99.0), 99.0).deadline_s == 99.001
    assert read_scheduling(write_scheduling(replace(TASK, deadline_s=None), 99.0), 99.0).deadline_s is None


def test_a_deadline_that_lies_as_far_as_a_request_may_say_is_read() -> None:
    """The door takes milliseconds up to 2**63."""
    far = read_scheduling(write_scheduling(replace(TASK, deadline_s=(2**63 - 1) / 1e3), 10.0), 10.0)
    assert far.deadline_s is not None and far.deadline_s > 1e12


def test_who_says_nothing_waits_with_the_others() -> None:
    scheduling = read_scheduling(b"{}", 1.0)
    assert (scheduling.tenant, scheduling.latency_class, scheduling.deadline_s) == ("", "media", None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": "20"}, 'settings.steps = "20"'),
        ({"steps": 1.5}, "settings.steps = 1.5"),
        ({"sampler": "plms"}, 'settings.sampler = "plms"; limit: .*dpmpp_2m'),
        ({"eta": 1.0}, "unknown field settings.eta; limit: known are width_px"),
        ({"seed": None}, "settings.seed = null"),
    ],
)
def test_wrong_settings_are_named(change: dict[str, object], words: str) -> None:
    document = json.loads(write_settings(SETTINGS)) | change
    with pytest.raises(InvalidRequest, match=words):
        read_settings(json.dumps(document).encode())


def test_a_class_that_nobody_draws_in_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r'scheduling.latency_class = "text"; limit: .*media.*batch'):
        read_scheduling(b'{"latency_class": "text"}', 0.0)
