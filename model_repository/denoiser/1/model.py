"""Text states and settings in, latents out; the work is in `proteus.generation`, in a thread of its own."""

from __future__ import annotations

from typing import Any

from proteus.backend.drawing import DrawWire
from proteus.backend.heartbeat import EngineWatch
from proteus.backend.metrics import Metrics, Telling
from proteus.backend.port import Port
from proteus.backend.startup import be_nicer, device_of, load_deployment, runtime_of, version_folder
from proteus.generation.denoisers import Placement
from proteus.generation.engine import DenoiseEngine
from proteus.generation.figures import DRAW_FIGURES
from proteus.manifest import DrawManifest


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        deployment = load_deployment(args)
        be_nicer(deployment.drawing.denoiser.nice)  # before its threads begin
        manifest = DrawManifest.load(deployment.repository_path)
        placement = Placement.of(runtime_of(args), device_of(args), deployment.gpu)
        engine = DenoiseEngine(version_folder(args), manifest, deployment.drawing.denoiser, placement)
        self.port = Port(engine, DrawWire())
        self.watch = EngineWatch(engine)
        self.telling = Telling(Metrics(DRAW_FIGURES), engine.figures, at_each=self.look)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self.port.serve(request)

    def look(self) -> None:
        self.port.look()
        self.watch.check()

    def finalize(self) -> None:
        self.telling.close()
        self.port.close()
