"""OpenVINO GenAI's pipeline that joins requests, with pictures: in process, so without any cost of a server.

Clients are threads that decode their picture and add their request; one more thread steps, as its own server does.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perf.peers import child

PACKAGES = ("openvino", "openvino-genai", "optimum-intel", "transformers")
PROMPT = "<s><|user|><image>{}<|end|><|assistant|>"  # what the checkpoint's own template makes
PREPROCESSOR = "preprocessor_config.json"


def convert(checkpoint: Path, out: Path) -> None:
    """By optimum's exporter, which leaves out the file that the pipeline reads the picture's size from."""
    exporter = Path(sys.executable).with_name("optimum-cli")
    task = ["--task", "image-text-to-text", "--weight-format", "fp32"]
    subprocess.run([sys.executable, exporter, "export", "openvino", "-m", checkpoint, *task, out], check=True)
    shutil.copy(checkpoint / PREPROCESSOR, out / PREPROCESSOR)
    told = json.loads((out / PREPROCESSOR).read_text())
    side_px = told["size"]["height"]
    # It knows no other way than to scale the short side and cut the rest: the same, where pictures are square.
    told |= {"size": {"shortest_edge": side_px}, "crop_size": {"height": side_px, "width": side_px}}
    (out / PREPROCESSOR).write_text(json.dumps(told))


@dataclass
class Live:
    """A request in the pipeline."""

    handle: Any
    sent_s: float
    wanted: int
    done: Future[dict[str, Any]] = field(default_factory=Future)
    ids: list[int] = field(default_factory=list)
    ttft_s: float = 0.0

    def read(self) -> bool:
        """Takes what is new; whether that was the last."""
        if self.handle.can_read():
            self.ttft_s = self.ttft_s or time.perf_counter() - self.sent_s
            self.ids += [token for output in self.handle.read().values() for token in output.generated_ids]
        if len(self.ids) < self.wanted:
            return False
        self.done.set_result({"ids": self.ids, "ttft_s": self.ttft_s})
        return True


class Pictures:
    def __init__(self, model: Path, threads: int) -> None:
        import openvino_genai as genai

        self._genai = genai
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size, scheduler.max_num_seqs, scheduler.enable_prefix_caching = 1, 16, True
        exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "INFERENCE_NUM_THREADS": threads}
        self._pipeline = genai.ContinuousBatchingPipeline(str(model), scheduler, "CPU", exact)
        self._added = threading.Condition()
        self._live: list[Live] = []
        self._num_requests = 0
        threading.Thread(target=self._step_for_ever, daemon=True).start()

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """All asks by so many clients; what a client sends is decoded before the clock starts, as base64 is not its."""
        asks = [(base64.b64decode(picture), question) for picture, question in job["asks"]]
        start_s = time.perf_counter()
        with ThreadPoolExecutor(job["clients"]) as clients:
            answers = list(clients.map(lambda ask: self._answer(*ask, job["tokens"]), asks))
        return {"answers": answers, "wall_s": time.perf_counter() - start_s}

    def _answer(self, picture: bytes, question: str, tokens: int) -> dict[str, Any]:
        import numpy as np
        import openvino as ov
        from PIL import Image

        sent_s = time.perf_counter()
        pixels = ov.Tensor(np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))[None])
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.do_sample, config.ignore_eos = tokens, False, True
        config.apply_chat_template = False
        with self._added:
            self._num_requests += 1
            number = self._num_requests
        handle = self._pipeline.add_request(number, PROMPT.format(question), [pixels], config)
        live = Live(handle, sent_s, tokens)
        with self._added:
            self._live.append(live)
            self._added.notify()
        return live.done.result()

    def _step_for_ever(self) -> None:
        for live in self._rounds():
            try:
                self._pipeline.step()
            except Exception as failure:
                for one in live:
                    one.done.set_exception(failure)
                raise
            ended = [one for one in live if one.read()]
            with self._added:
                self._live = [one for one in self._live if one not in ended]

    def _rounds(self) -> Iterator[list[Live]]:
        """Those to step, whenever there are any."""
        while True:
            with self._added:
                self._added.wait_for(lambda: self._live)
                live = list(self._live)
            yield live


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--convert", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.convert:
        convert(arguments.model, arguments.convert)
    else:
        child.answer_jobs(lambda: Pictures(arguments.model, arguments.threads).run, PACKAGES)


if __name__ == "__main__":
    main()
