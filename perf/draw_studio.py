"""Three ways to draw the same orders in this process: our engine, a bare loop over its graphs, and diffusers' pipeline.

All encode prompt and negative prompt, denoise and decode, with one thread. B batch, R rows, Z latent channels.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from proteus.deployment import Deployment
from proteus.door.draw_text import PromptTokenizer
from proteus.generation.engine import DenoiseEngine
from proteus.generation.figures import DrawFigures
from proteus.generation.guidance import combine
from proteus.generation.noise import INITIAL, noise
from proteus.generation.samplers import Sampler
from proteus.generation.schedule import NoiseSchedule
from proteus.generation.task import Condition, DrawEvent, DrawFailure, DrawTask, Floats, Settings
from proteus.manifest import DrawManifest

Pixels = npt.NDArray[np.uint8]  # (H, W, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One picture to draw."""

    prompt: str
    settings: Settings
    negative_prompt: str = ""


class Way(Protocol):
    def draw(self, orders: Sequence[Order]) -> list[Pixels]: ...


class Ends:
    """What is done once for a picture: its text before, its pixels after. Two sessions of the exported graphs."""

    def __init__(self, deployment: Deployment) -> None:
        repository, drawing = deployment.repository_path, deployment.drawing
        self.manifest = DrawManifest.load(repository)
        self._tokenizer = PromptTokenizer.from_checkpoint(drawing.checkpoint_path, self.manifest.text_inputs)
        self._text_encoder = session(repository / "text_encoder" / "1" / "model.onnx")
        self._vae_decoder = session(repository / "vae_decoder" / "1" / "model.onnx")

    def conditions(self, texts: Sequence[str]) -> list[Condition]:
        """All in one batch."""
        ids = [self._tokenizer.encode(text, "prompt").arrays for text in texts]
        feed: dict[str, Any] = {name: np.stack([one[name] for one in ids]) for name in ids[0]}
        feed["cache_key"] = np.zeros((len(texts), 32), np.uint8)
        names = ["text_states", *(["pooled"] if self.manifest.pooled_width else [])]
        states, *pooled = self._text_encoder.run(names, feed)
        return [Condition(states=states[row], pooled=pooled[0][row] if pooled else None) for row in range(len(texts))]

    def pixels(self, latents: Sequence[Floats]) -> list[Pixels]:
        """Latents of one size, (Z, h, w) each, in one batch."""
        return list(self._vae_decoder.run(["pixels"], {"latents": np.stack(latents)})[0])


class Studio:
    """Ours: so many clients, each of which orders its next picture when it has its last one."""

    def __init__(self, deployment: Deployment, *, clients: int) -> None:
        self._ends, self._clients = Ends(deployment), clients
        folder = deployment.repository_path / "denoiser" / "1"
        self._engine = DenoiseEngine(folder, self._ends.manifest, deployment.drawing.denoiser)
        self._max_decoded = deployment.drawing.vae_decoder.max_batch

    def draw(self, orders: Sequence[Order]) -> list[Pixels]:
        """In the order of `orders`."""
        done: queue.SimpleQueue[tuple[int, DrawEvent | DrawFailure]] = queue.SimpleQueue()
        waiting = list(enumerate(orders))[::-1]
        drawn: dict[int, Pixels] = {}
        for _ in range(min(self._clients, len(orders))):
            self._submit(*waiting.pop(), done)
        while len(drawn) < len(orders):
            for index, pixels in self._decode(self._ended(done)):
                drawn[index] = pixels
                if waiting:
                    self._submit(*waiting.pop(), done)
        return [drawn[index] for index in range(len(orders))]

    def figures(self) -> DrawFigures:
        return self._engine.figures()

    def close(self) -> None:
        self._engine.close()

    def _submit(self, index: int, order: Order, done: queue.SimpleQueue[tuple[int, DrawEvent | DrawFailure]]) -> None:
        prompt, negative = self._ends.conditions([order.prompt, order.negative_prompt])
        task = DrawTask(
            request_key=index.to_bytes(16, "little"),
            prompt=prompt,
            negative=None if order.settings.guidance == 1 else negative,
            settings=order.settings,
        )
        self._engine.submit(task, lambda event: done.put((index, event)))

    def _ended(self, done: queue.SimpleQueue[tuple[int, DrawEvent | DrawFailure]]) -> dict[int, Floats]:
        """The latents of those that are done by now, of one at least."""
        ended: dict[int, Floats] = {}
        while not ended or not done.empty() and len(ended) < self._max_decoded:
            index, event = done.get()
            if isinstance(event, DrawFailure):
                raise event.error
            if event.clean is not None:
                ended[index] = event.clean
        return ended

    def _decode(self, ended: Mapping[int, Floats]) -> list[tuple[int, Pixels]]:
        pairs: list[tuple[int, Pixels]] = []
        for shape in {latent.shape for latent in ended.values()}:
            alike = [index for index, latent in ended.items() if latent.shape == shape]
            pairs += zip(alike, self._ends.pixels([ended[index] for index in alike]), strict=True)
        return pairs


class BareLoop:
    """The limit: a batch in lockstep, nothing between two calls but the sampler on the whole batch at once."""

    def __init__(self, deployment: Deployment, *, batch: int) -> None:
        self._ends, self._batch = Ends(deployment), batch
        self._denoiser = session(deployment.repository_path / "denoiser" / "1" / "denoiser.onnx")
        self._schedule = NoiseSchedule.of(self._ends.manifest)

    def draw(self, orders: Sequence[Order]) -> list[Pixels]:
        """Orders that differ in prompt and seed only, with guidance."""
        drawn: list[Pixels] = []
        for first in range(0, len(orders), self._batch):
            drawn += self._lockstep(orders[first : first + self._batch])
        return drawn

    def _lockstep(self, orders: Sequence[Order]) -> list[Pixels]:
        texts = [order.prompt for order in orders] + [order.negative_prompt for order in orders]
        settings, factor = orders[0].settings, self._ends.manifest.vae_factor
        height, width = settings.height_px // factor, settings.width_px // factor
        shape = (self._ends.manifest.latent_channels, height, width)
        feed = {"text_states": np.stack([condition.states for condition in self._ends.conditions(texts)])}
        sampler = Sampler(self._schedule.grid(settings.steps, settings.sampler, height * width))
        batch = sampler.start(np.stack([_noise(order.settings, shape) for order in orders]))
        while batch.evaluations_left:
            scaled = batch.model_input()
            feed["latents"] = np.concatenate((scaled, scaled))
            feed["timestep"] = np.full(len(texts), batch.timestep, np.float32)
            (both,) = self._denoiser.run(["prediction"], feed)
            batch.advance(combine(both[: len(orders)], both[len(orders) :], settings.guidance))
        return self._ends.pixels(list(batch.latent))


class Diffusers:
    """What a user would run instead: the pipeline of the checkpoint, one picture after the other."""

    def __init__(self, checkpoint: Path, manifest: DrawManifest) -> None:
        import torch
        from diffusers import DiffusionPipeline, EulerDiscreteScheduler
        from diffusers.utils import logging as diffusers_logging
        from transformers.utils import logging as transformers_logging

        for library in (diffusers_logging, transformers_logging):  # they write over our bar
            library.set_verbosity_error()
            library.disable_progress_bar()
        torch.set_num_threads(1)
        self._manifest, self._torch = manifest, torch
        self._pipeline = DiffusionPipeline.from_pretrained(checkpoint, dtype=torch.float32, local_files_only=True)
        self._pipeline.scheduler = EulerDiscreteScheduler.from_config(self._pipeline.scheduler.config)
        self._pipeline.set_progress_bar_config(disable=True)

    def draw(self, orders: Sequence[Order]) -> list[Pixels]:
        """Orders of Euler's sampler; from our noise, so that the pictures can be compared."""
        return [self._one(order) for order in orders]

    def _one(self, order: Order) -> Pixels:
        settings, factor = order.settings, self._manifest.vae_factor
        shape = (self._manifest.latent_channels, settings.height_px // factor, settings.width_px // factor)
        (image,) = self._pipeline(
            order.prompt,
            negative_prompt=order.negative_prompt,
            width=settings.width_px,
            height=settings.height_px,
            num_inference_steps=settings.steps,
            guidance_scale=settings.guidance,
            latents=self._torch.from_numpy(_noise(settings, shape))[None],
        ).images
        return np.asarray(image)


def session(path: Path) -> ort.InferenceSession:
    """With one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _noise(settings: Settings, shape: tuple[int, ...]) -> Floats:
    return noise(settings.seed, settings.image_index, INITIAL, shape)
