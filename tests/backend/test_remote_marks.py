"""Marks of another server's clock in ours, and the name of what encodes there."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from proteus.backend.remote_wire import digest, in_our_time
from proteus.stages import EncodeMarks, Span

UNKNOWN = (0, 0)


def marks(preprocess: Span, encoder: Span = UNKNOWN, connector: Span = UNKNOWN) -> EncodeMarks:
    return EncodeMarks(preprocess=preprocess, encoder=encoder, connector=connector)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (marks((110, 120), (125, 140), (140, 150)), marks((110, 120), (125, 140), (140, 150))),  # one clock
        (marks((100, 120), (125, 140), (140, 200)), marks((100, 120), (125, 140), (140, 200))),
        (marks((9_000, 9_010), (9_015, 9_030), (9_030, 9_040)), marks((130, 140), (145, 160), (160, 170))),
        (marks((10, 20), (25, 40), (40, 50)), marks((130, 140), (145, 160), (160, 170))),  # started after us
        (marks((9_000, 9_010), (9_015, 9_040)), marks((130, 140), (145, 170))),  # a connector without a clock
        (marks((9_000, 9_010)), marks((100, 110))),  # an encoder without a clock: it took what is left
        (marks(UNKNOWN), marks(UNKNOWN)),
        (marks((9_000, 9_100), (9_100, 9_150), (9_150, 9_400)), marks((100, 200), (200, 250), (250, 500))),
    ],
)
def test_marks_of_one_clock_stay_and_others_are_put_in_the_middle(theirs: EncodeMarks, ours: EncodeMarks) -> None:
    assert in_our_time(theirs, 100, 200) == ours


@given(
    start=st.integers(1, 10**15),
    parts=st.lists(st.integers(0, 10**9), min_size=5, max_size=5),
    sent_ns=st.integers(1, 10**15),
    took_ns=st.integers(0, 10**10),
    known=st.integers(0, 3),
)
def test_no_stage_is_negative_and_all_fit_into_the_time_that_was_waited(
    start: int, parts: list[int], sent_ns: int, took_ns: int, known: int
) -> None:
    at = [start]
    for part in parts:
        at.append(at[-1] + part)
    spans = [(at[0], at[1]), (at[2], at[3]), (at[4], at[5])]
    theirs = marks(*(span if number < known else UNKNOWN for number, span in enumerate(spans)))
    received_ns = sent_ns + took_ns
    ours = in_our_time(theirs, sent_ns, received_ns)
    stages = ours.stages_ns(sent_ns, received_ns)
    assert all(ns >= 0 for ns in stages.values())
    assert sum(stages.values()) <= took_ns
    if known == 1 and parts[0] <= took_ns and ours != theirs:
        assert stages == {"preprocess": parts[0], "encode": took_ns - parts[0]}
    if known == 3 and at[5] - at[0] <= took_ns:
        assert sent_ns <= ours.preprocess[0] <= ours.connector[1] <= received_ns
        assert stages["encode"] == parts[2], "how long it took is how long it took there"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("instance_group [ { count: 2 kind: KIND_CPU } ] dynamic_batching { max_queue_delay_microseconds: 1 }", True),
        ("instance_group [ { count: 1 kind: KIND_GPU gpus: [ 0 ] } ]", False),
        ('instance_group [ { kind: KIND_CPU } ] backend: "onnxruntime"', False),
    ],
)
def test_a_name_is_of_what_runs_the_encoder_and_not_of_how_many_do(text: str, same: bool) -> None:
    def name_of(text: str) -> str:
        return digest("2.51.0", [text_format.Parse(text, model_config_pb2.ModelConfig())])

    assert (name_of(text) == name_of("instance_group [ { count: 1 kind: KIND_CPU } ]")) is same
