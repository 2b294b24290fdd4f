"""Prompt ids and visual tokens in, events out; the work is in `proteus.language`, in a thread of its own."""

from __future__ import annotations

from typing import Any

from proteus.backend.generation import LlmWire
from proteus.backend.heartbeat import EngineWatch
from proteus.backend.metrics import Metrics, Telling
from proteus.backend.port import Port
from proteus.backend.startup import load_deployment, runtime_of, version_folder
from proteus.language.engines import open_engine
from proteus.language.figures import ENGINE_FIGURES


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        engine = open_engine(runtime_of(args), load_deployment(args), version_folder(args))
        self.port = Port(engine, LlmWire())
        self.watch = EngineWatch(engine)
        self.telling = Telling(Metrics(ENGINE_FIGURES), engine.figures, at_each=self.look)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self.port.serve(request)

    def look(self) -> None:
        self.port.look()
        self.watch.check()

    def finalize(self) -> None:
        self.telling.close()
        self.port.close()
