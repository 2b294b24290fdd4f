"""Two ways to step many pictures in one batch on a real server: a loop of our own, and Triton's iterative sequences.

    python -m perf.draw_loops [--rounds 5] [--json]

Both run one random graph of the demo's shape with one thread, at most 8 pictures in a call; clients draw again at once.
`loop/…`: ours, by turns with iterative sequences as the baseline; CPU time is that of the server and the model's stub.
docs/decisions/0017 has the choice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from tritonclient.grpc import InferInput

from perf.arguments import at_least
from perf.records import Record, versions, write
from proteus.launcher import Server

ROOT = Path(__file__).parents[1]
Z, TOKENS, WIDTH = 8, 48, 128
CONFIG = """
backend: "python"
max_batch_size: 8
model_transaction_policy { decoupled: true }
instance_group [ { kind: KIND_CPU count: 1 } ]
input [ { name: "noise" data_type: TYPE_FP32 dims: [ 8, -1, -1 ] } ]
input [ { name: "states" data_type: TYPE_FP32 dims: [ 2, 48, 128 ] } ]
input [ { name: "steps" data_type: TYPE_INT32 dims: [ 1 ] } ]
input [ { name: "guidance" data_type: TYPE_FP32 dims: [ 1 ] } ]
input [ { name: "unread" data_type: TYPE_FP32 dims: [ -1 ] optional: true } ]
output [ { name: "latent" data_type: TYPE_FP32 dims: [ 8, -1, -1 ] } ]
output [ { name: "calls" data_type: TYPE_INT64 dims: [ -1, 2 ] } ]
output [ { name: "held" data_type: TYPE_INT64 dims: [ 1 ] } ]
"""
OLDEST = "sequence_batching {{ iterative_sequence: true {} oldest {{ max_candidate_sequences: 16 }} }}"
MODELS = {  # class and batching of each
    "loop": ("Loop", ""),
    "iterative": ("Iterative", OLDEST.format("max_sequence_idle_microseconds: 60000000")),
    "default_idle": ("Iterative", OLDEST.format("")),  # 1 s
}
RIVALS = ("loop", "iterative")
FROZEN_S = 60.0  # pictures of any phase take a small part of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One picture to draw."""

    steps: int = 20
    guidance: float = 3.0
    sides: tuple[int, int] = (8, 8)
    unread_floats: int = 0  # sent along: a large model's text states are megabytes

    def inputs(self) -> list[InferInput]:
        rng = np.random.default_rng(0)
        arrays: dict[str, np.ndarray] = {
            "noise": rng.standard_normal((1, Z, *self.sides), np.float32),
            "states": rng.standard_normal((1, 2, TOKENS, WIDTH), np.float32),
            "steps": np.array([[self.steps]], np.int32),
            "guidance": np.array([[self.guidance]], np.float32),
        }
        if self.unread_floats:
            arrays["unread"] = np.zeros((1, self.unread_floats), np.float32)
        return [_input(name, array) for name, array in arrays.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    clients: int
    orders: Sequence[Order]


LOADS: Mapping[str, Load] = {
    **{f"clients/{number}": Load(clients=number, orders=[Order()] * (3 * number)) for number in (1, 4, 8, 16)},
    "steps_4_20_50": Load(clients=8, orders=[Order(steps=steps) for steps in (4, 4, 20, 50) * 6]),
    "guidance_1_and_3": Load(clients=8, orders=[Order(guidance=guidance) for guidance in (1.0, 3.0) * 12]),
    "four_sizes": Load(clients=8, orders=[Order(sides=sides) for sides in ((8, 8), (12, 8), (8, 12), (12, 12)) * 4]),
    "states_of_10_MB": Load(clients=8, orders=[Order(unread_floats=2_500_000)] * 16),
}


@dataclass(slots=True)
class Turn:
    """What one model did with one load."""

    wall_s: float = 0.0
    cpu_s: float = 0.0  # of the server and the model's stub
    steps: int = 0
    calls: set[tuple[int, int]] = field(default_factory=set)  # number and rows
    picture_s: dict[int, list[float]] = field(default_factory=dict)  # by steps

    @property
    def steps_per_cpu_s(self) -> float:
        return self.steps / self.cpu_s

    @property
    def rows_per_call(self) -> float:
        return sum(rows for _, rows in self.calls) / len(self.calls)


class Bench:
    """Draws on both models of one server."""

    def __init__(self, server: Server, client: triton.InferenceServerClient) -> None:
        self._server, self._client = server, client
        self._num_drawn = 0

    async def draw(self, model: str, order: Order, *, with_end: bool = False) -> tuple[np.ndarray, int]:
        """The calls that it was in, (steps, 2), and how many pictures the model held afterwards."""
        self._num_drawn += 1
        sequence = {"sequence_id": self._num_drawn, "sequence_start": True, "sequence_end": with_end}

        async def one() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": model, "inputs": order.inputs(), **({} if model == "loop" else sequence)}

        async for result, error in self._client.stream_infer(one()):
            if error is not None:
                raise error
            return result.as_numpy("calls").reshape(-1, 2), int(result.as_numpy("held").item())
        raise RuntimeError(f"{model} gave no answer")

    async def turn(self, model: str, load: Load) -> Turn:
        """Each client takes the next order as soon as it has its picture."""
        turn, left = Turn(), random.Random(0).sample(load.orders, len(load.orders))

        async def client() -> None:
            while left:
                order, begin_s = left.pop(), time.perf_counter()
                calls, _ = await self.draw(model, order)
                turn.picture_s.setdefault(order.steps, []).append(time.perf_counter() - begin_s)
                turn.calls.update(map(tuple, calls.tolist()))
                turn.steps += order.steps

        begin_s, begin_cpu_s = time.perf_counter(), self._cpu_s(model)
        await asyncio.gather(*(client() for _ in range(load.clients)))
        turn.wall_s, turn.cpu_s = time.perf_counter() - begin_s, self._cpu_s(model) - begin_cpu_s
        return turn

    async def count_ended(self, model: str, orders: Sequence[Order], *, with_end: bool = False) -> int:
        """Of pictures drawn at once, how many the clients get before FROZEN_S."""
        drawing = [asyncio.create_task(self.draw(model, order, with_end=with_end)) for order in orders]
        await asyncio.wait(drawing, timeout=FROZEN_S)
        ended = [task.done() and not task.exception() for task in drawing]
        await _cancel(drawing)
        return sum(ended)

    async def count_held(self, model: str) -> int:
        """16 clients leave in the middle, four times; then how many pictures are still in the model's memory."""
        for _ in range(4):
            drawing = [asyncio.create_task(self.draw(model, Order(steps=400))) for _ in range(16)]
            await asyncio.sleep(1.0)
            await _cancel(drawing)
        await asyncio.sleep(1.0)
        async with asyncio.timeout(FROZEN_S):
            return (await self.draw(model, Order()))[1]

    def _cpu_s(self, model: str) -> float:
        pids = [self._server.pid, *self._server.stub_pids()[model]]
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
        return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


def write_graph(folder: Path) -> Path:
    """A random denoiser of the demo's shape."""
    import torch
    from diffusers import UNet2DConditionModel

    from export.onnx_graph import Graph, Port, export_graph

    class Denoiser(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unet = UNet2DConditionModel(
                in_channels=Z,
                out_channels=Z,
                down_block_types=("CrossAttnDownBlock2D",) * 2,
                up_block_types=("CrossAttnUpBlock2D",) * 2,
                block_out_channels=(96, 160),
                layers_per_block=1,
                cross_attention_dim=WIDTH,
                attention_head_dim=4,
                norm_num_groups=16,
                use_linear_projection=True,
            )

        def forward(self, latents: torch.Tensor, timestep: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
            return self.unet(latents, timestep, states).sample

    torch.set_num_threads(1)
    torch.manual_seed(0)
    graph = Graph(
        name="denoiser",
        path=Path("denoiser.onnx"),
        module=Denoiser().eval(),
        example=(torch.zeros(2, Z, 8, 8), torch.zeros(2), torch.zeros(2, TOKENS, WIDTH)),
        inputs=(
            Port(name="latents", dims=("rows", Z, "height", "width")),
            Port(name="timestep", dims=("rows",)),
            Port(name="text_states", dims=("rows", TOKENS, WIDTH)),
        ),
        outputs=(Port(name="prediction", dims=("rows", Z, "height", "width")),),
    )
    return export_graph(graph, folder)


def write_models(repository: Path, graph: Path) -> None:
    for name, (kind, batching) in MODELS.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(f"from perf.draw_loop_models import {kind} as TritonPythonModel\n")
        parameter = f'parameters {{ key: "graph" value {{ string_value: "{graph}" }} }}'
        (repository / name / "config.pbtxt").write_text(f'name: "{name}"\n{CONFIG}{parameter}\n{batching}\n')


async def measure_speed(server: Server, rounds: int, command: str) -> list[Record]:
    turns: dict[tuple[str, str], list[Turn]] = {(load, model): [] for load in LOADS for model in RIVALS}
    async with triton.InferenceServerClient(server.ports.grpc_url) as client:
        bench = Bench(server, client)
        for model in RIVALS:  # shared memory grows, the graph warms up
            await bench.turn(model, LOADS["clients/8"])
        with Progress(console=Console(stderr=True)) as progress:
            for number in progress.track(range(rounds), description="loops"):
                for load in LOADS:
                    for model in RIVALS[:: -1 if number % 2 else 1]:
                        turns[load, model].append(await bench.turn(model, LOADS[load]))
    return [speed_record(load, turns[load, "loop"], turns[load, "iterative"], command) for load in LOADS]


async def measure_faults(server: Server, command: str) -> list[Record]:
    """What a client gets: ours, and iterative sequences at the baseline."""
    slow = [Order(steps=4, sides=(32, 32))] * 8
    async with triton.InferenceServerClient(server.ports.grpc_url) as client:
        bench = Bench(server, client)
        held = [await bench.count_held(model) for model in RIVALS]
        slow_ended = [await bench.count_ended(model, slow) for model in ("loop", "default_idle")]
        with_end = [await bench.count_ended(model, [Order()] * 4, with_end=True) for model in RIVALS]
    found = {
        "held_after_64_cancels": (held, "in the memory of the model; Triton does not tell it whom it drops"),
        "ended/slow_steps": (
            slow_ended,
            "of 8 with steps of more than 1 s, what Triton by default lets a sequence idle",
        ),
        "ended/start_and_end": (
            with_end,
            "of 4 whose one request has START and END set; the rest is never answered",
        ),
    }
    return [
        Record(name=f"loop/{name}", value=ours, unit="pictures", baseline=native, command=command, note=note)
        for name, ((ours, native), note) in found.items()
    ]


def speed_record(load: str, ours: Sequence[Turn], native: Sequence[Turn], command: str) -> Record:
    notes = [f"{LOADS[load].clients} clients; ours / iterative: {_pair('{:.2f} rows per call', ours, native, _rows)}"]
    notes.append(_pair("{:.1f} steps/s by the wall", ours, native, lambda turn: turn.steps / turn.wall_s))
    for steps in sorted(ours[0].picture_s):
        notes.append(_pair(f"{{:.2f}} s for {steps} steps", ours, native, lambda turn, n=steps: _median_s(turn, n)))
    return Record(
        name=f"loop/{load}",
        value=round(statistics.median(turn.steps_per_cpu_s for turn in ours), 1),
        unit="steps/s of CPU time",
        baseline=round(statistics.median(turn.steps_per_cpu_s for turn in native), 1),
        ratio=round(
            statistics.median(o.steps_per_cpu_s / n.steps_per_cpu_s for o, n in zip(ours, native, strict=True)), 3
        ),
        runs=[round(turn.steps_per_cpu_s, 1) for turn in ours],
        command=command,
        versions=versions("tritonclient", "nvidia-pytriton", "torch", "diffusers"),
        note="; ".join(notes),
    )


def _pair(text: str, ours: Sequence[Turn], native: Sequence[Turn], of: Any) -> str:
    values = [statistics.median(map(of, turns)) for turns in (ours, native)]
    number, _, rest = text.partition("}")
    return f"{(number + '}').format(values[0])} / {(number + '}').format(values[1])}{rest}"


def _rows(turn: Turn) -> float:
    return turn.rows_per_call


def _median_s(turn: Turn, steps: int) -> float:
    return statistics.median(turn.picture_s[steps])


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _input(name: str, array: np.ndarray) -> InferInput:
    tensor = InferInput(name, array.shape, {"float32": "FP32", "int32": "INT32"}[array.dtype.name])
    tensor.set_data_from_numpy(array)
    return tensor


def main() -> int:
    """Starts a server of both models, measures, writes perf/results/draw_loops.json and prints; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--json", action="store_true", help="print the records instead of a table")
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])  # for the stubs
    command = f"python -m perf.draw_loops --rounds {arguments.rounds}"
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder, "models")
        write_models(repository, write_graph(Path(folder)))
        with Server.for_repository(repository, log=Path("var/perf-draw-loops.log")) as server:
            found = asyncio.run(measure_speed(server, arguments.rounds, command))
        with Server.for_repository(repository, log=Path("var/perf-draw-loops-faults.log")) as server:
            found += asyncio.run(measure_faults(server, command))
    write("draw_loops", found)
    if arguments.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return 0
    table = Table("record", "loop", "iterative", "unit", "ratio", "note")
    for one in found:
        table.add_row(one.name, f"{one.value:g}", f"{one.baseline:g}", one.unit, f"{one.ratio or 0:g}", one.note)
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
