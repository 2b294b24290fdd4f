"""Prompt ids and visual tokens in, events out; the work is in `proteus.language`, in a thread of its own."""

from __future__ import annotations

from functools import partial
from typing import Any

from proteus.backend.generation import Emitter, read_generation, read_stop
from proteus.backend.guard import Responses, responding
from proteus.backend.startup import load_deployment, version_folder
from proteus.language.engine import OnnxEngine
from proteus.language.tokenizer import load_tokenizer


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        deployment = load_deployment(args)
        self.engine = OnnxEngine(
            version_folder(args),
            load_tokenizer(deployment.checkpoint_path),
            slots=deployment.llm.slots,
            context_tokens=deployment.llm.context_tokens,
            max_queue=deployment.llm.max_queue,
            threads=deployment.llm.threads,
        )

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            with responding(request) as responses:
                self.serve(request, responses)

    def serve(self, request: Any, responses: Responses) -> None:
        if (key := read_stop(request)) is not None:
            self.engine.cancel(key)
            responses.close()
            return
        generation = read_generation(request)
        self.engine.submit(generation, Emitter(responses, partial(self.engine.cancel, generation.request_key)))

    def finalize(self) -> None:
        self.engine.close()
