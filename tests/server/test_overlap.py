"""Stages of other requests go on while the language model decodes: told by the order of events, not by a clock."""

from __future__ import annotations

import os
import threading

from proteus.client import Answer, Client
from proteus.deployment import Deployment
from proteus.launcher import Server
from tests.preprocess.pictures import encode, noise
from tests.server.test_stages import ANY_TOKEN, DEMO

LONG = 900  # tokens, which no other request of these tests comes near


class Talk(threading.Thread):
    """A long answer that is being given; `begun` once its first piece has come."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self.begun = threading.Event()
        self.num_tokens = 0
        self.answer: Answer | None = None

    def run(self) -> None:
        with Client(self._url) as client:
            for piece in client.stream("Tell me everything.", max_tokens=LONG, **ANY_TOKEN):
                if isinstance(piece, Answer):
                    self.answer = piece
                else:
                    self.num_tokens += len(piece.token_ids)
                self.begun.set()


def test_a_picture_is_prepared_and_encoded_while_other_answers_are_decoded(server: Server) -> None:
    """As many answers decode as text has slots under any policy that `auto` may have taken by the traffic before; were
    a picture to wait for any of them, its answer would come after theirs.
    """
    picture = encode(noise(64, 48, int.from_bytes(os.urandom(3), "big")))
    talks = [Talk(server.ports.grpc_url) for _ in range(Deployment.load(DEMO).llm.schedule.text_slots)]
    with Client(server.ports.grpc_url) as client:
        client.ask("Hi", max_tokens=1)  # connected
        for talk in talks:
            talk.start()
        for talk in talks:
            assert talk.begun.wait(60)
        told = [talk.num_tokens for talk in talks]
        answer = client.ask("What colour is it?", picture, max_tokens=1)
        told_meanwhile = [talk.num_tokens - before for talk, before in zip(talks, told, strict=True)]
    going_on = [talk for talk in talks if talk.answer is None]
    for talk in talks:
        talk.join(60)

    assert answer.pictures == ("encoded",)
    assert going_on, "every answer ended before the picture was encoded"
    assert all(tokens > 0 for tokens in told_meanwhile)
    for talk in talks:
        assert talk.answer is not None
        assert talk.answer.usage.output_tokens == LONG
    for talk in going_on:
        assert talk.answer is not None
        assert talk.answer.stages_ms["decode"] > answer.stages_ms["encode"] > 0
