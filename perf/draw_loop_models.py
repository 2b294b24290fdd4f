"""Two Triton models over one graph, for perf.draw_loops: Triton's iterative sequences, and a loop of our own.

A picture is Euler steps of a v-prediction model with the demo's schedule. Runs in the stub of the Python backend.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

MAX_PICTURES = 8  # in one call
TRAIN_SIGMAS = np.sqrt(1 / np.cumprod(1 - np.linspace(0.00085**0.5, 0.02**0.5, 1000) ** 2) - 1)


class Picture:
    """State of one picture; nothing of it is anywhere else."""

    def __init__(self, request: Any) -> None:
        steps = int(_input(request, "steps")[0])
        self.guidance = float(_input(request, "guidance")[0])
        self.states = _input(request, "states")[: 1 if self.guidance == 1.0 else 2].copy()
        self.timesteps = np.round(np.arange(1000, 0, -1000 / steps)).astype(int) - 1
        self.sigmas = np.append(TRAIN_SIGMAS[self.timesteps], 0.0)
        self.step = 0
        self.latent = _input(request, "noise") * np.float32(self.sigmas[0])
        self.calls: list[tuple[int, int]] = []  # number and rows of each call it was in
        self.responses = request.get_response_sender()

    @property
    def is_done(self) -> bool:
        return self.step == len(self.timesteps)

    def advance(self, prediction: np.ndarray) -> None:
        guided = prediction[0]
        if len(prediction) == 2:
            guided = prediction[1] + self.guidance * (prediction[0] - prediction[1])
        sigma, after = self.sigmas[self.step : self.step + 2]
        clean = self.latent / (sigma**2 + 1) - guided * (sigma / np.sqrt(sigma**2 + 1))
        self.latent = (self.latent + (self.latent - clean) * ((after - sigma) / sigma)).astype(np.float32)
        self.step += 1

    def send(self, num_held: int) -> None:
        """The one response; `num_held` pictures stay in the model's memory after it."""
        if not self.is_done:
            self.responses.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return
        outputs = {"latent": self.latent[None], "calls": np.array([self.calls]), "held": np.array([[num_held]])}
        response = pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in outputs.items()])
        self.responses.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class Stepper:
    """The graph, and the number of its calls so far."""

    def __init__(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        path = parameters["graph"]["string_value"]
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.num_calls = 0

    def step(self, pictures: Sequence[Picture]) -> None:
        """One step of each. Pictures of one size only."""
        branches = [len(picture.states) for picture in pictures]
        scaled = [picture.latent / np.float32(np.hypot(picture.sigmas[picture.step], 1)) for picture in pictures]
        feed = {
            "latents": np.repeat(np.stack(scaled), branches, axis=0),
            "timestep": np.repeat([np.float32(picture.timesteps[picture.step]) for picture in pictures], branches),
            "text_states": np.concatenate([picture.states for picture in pictures]),
        }
        prediction = self._session.run(None, feed)[0]
        for picture, part in zip(pictures, np.split(prediction, np.cumsum(branches)[:-1]), strict=True):
            picture.calls.append((self.num_calls, len(prediction)))
            picture.advance(part)
        self.num_calls += 1


class Iterative:
    """Triton calls `execute` for each step, with whom it has chosen to share it."""

    def initialize(self, args: dict[str, str]) -> None:
        self.stepper = Stepper(args)
        self.pictures: dict[Any, Picture] = {}  # by correlation id

    def execute(self, requests: list[Any]) -> None:
        due = []
        for request in requests:
            key = request.correlation_id()
            picture = self.pictures.get(key)
            if picture is None:
                picture = self.pictures[key] = Picture(request)
            due.append((key, request, picture))
        live = [picture for _, _, picture in due if not picture.responses.is_cancelled()]
        if live:
            self.stepper.step(live)
        for key, request, picture in due:
            if picture in live and not picture.is_done:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                del self.pictures[key]
                picture.send(len(self.pictures))


class Loop:
    """`execute` hands pictures to a thread; the thread steps those of one size together, who waited longest first."""

    def initialize(self, args: dict[str, str]) -> None:
        self.stepper = Stepper(args)
        self.coming: queue.SimpleQueue[Picture | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self.coming.put(Picture(request))

    def finalize(self) -> None:
        self.coming.put(None)
        self.thread.join()

    def _run(self) -> None:
        waiting: list[Picture] = []  # who had its last step longest ago is first
        while True:
            while not waiting or not self.coming.empty():
                if (picture := self.coming.get()) is None:
                    return
                waiting.append(picture)
            shape = waiting[0].latent.shape
            due = list(islice((picture for picture in waiting if picture.latent.shape == shape), MAX_PICTURES))
            waiting = [picture for picture in waiting if picture not in due]
            live = [picture for picture in due if not picture.responses.is_cancelled()]
            if live:
                self.stepper.step(live)
            for picture in due:
                if picture in live and not picture.is_done:
                    waiting.append(picture)
                else:
                    picture.send(len(waiting))


def _input(request: Any, name: str) -> np.ndarray:
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0]
