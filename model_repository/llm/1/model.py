"""Prompt ids and visual tokens in, events out; the work is in `proteus.language`, in a thread of its own."""

from __future__ import annotations

from typing import Any

from proteus.backend.generation import LlmWire
from proteus.backend.heartbeat import EngineWatch
from proteus.backend.metrics import Metrics, Telling
from proteus.backend.port import Port
from proteus.backend.startup import load_deployment, version_folder
from proteus.language.engine import OnnxEngine
from proteus.language.figures import ENGINE_FIGURES
from proteus.language.tokenizer import load_tokenizer
from proteus.manifest import Manifest


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        deployment = load_deployment(args)
        engine = OnnxEngine(
            version_folder(args),
            load_tokenizer(deployment.checkpoint_path),
            deployment.llm,
            revision=Manifest.load(deployment.repository_path).revision,
        )
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
