"""Keys and values in slots against pages, on ONNX Runtime's CPU provider: the attention of one layer in a decode step.

Slotted: GroupQueryAttention appends in place, its memory bound once. Paged: what paging costs without a kernel that
reads pages: each step gathers the blocks of every stream into one contiguous past, attends, and scatters the new row
back. In turns, one thread on one core, microseconds of CPU time; medians. Also what the prefix cache costs and saves.

    python -m perf.kv_memory [--rounds 15] [--only SHAPE]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from perf.records import Record, write
from proteus.deployment import Deployment
from proteus.language.kv_slots import KvSlots
from proteus.language.onnx_decoder import DecoderManifest, OnnxDecoder
from proteus.language.prefix import Chain, Link, chain, root
from proteus.language.prefix_cache import PrefixCache
from proteus.limits import PrefixCache as PrefixLimits

COMMAND = "python -m perf.kv_memory"
DEMO = Path(__file__).parents[1] / "deployments" / "demo.toml"
BLOCK_TOKENS = 16
STREAMS, CONTEXTS = (1, 8, 16), (128, 1024)
HELD_BLOCKS = (100, 100_000)
PREFIX_TOKENS = 256
Shapes = dict[str, list[int | str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    name: str
    heads: int
    kv_heads: int
    width: int


SHAPES = (Shape(name="demo", heads=6, kv_heads=2, width=32), Shape(name="7b", heads=32, kv_heads=8, width=128))


class Attention:
    """One GroupQueryAttention over `places` of `streams`, each of which holds `context` - 1 tokens before the step."""

    def __init__(self, shape: Shape, streams: int, context: int, places: int) -> None:
        rng = np.random.default_rng(0)
        self.new = [rng.random((streams, 1, shape.kv_heads * shape.width), dtype=np.float32) for _ in range(2)]
        self.query = rng.random((streams, 1, shape.heads * shape.width), dtype=np.float32)
        size = (streams, shape.kv_heads, places, shape.width)
        self.past = [rng.random(size, dtype=np.float32) for _ in range(2)]
        self.output = np.zeros_like(self.query)
        self.last_places = np.full(streams, context - 1, dtype=np.int32)
        self.total = np.array(context, dtype=np.int32)
        self.session = session(gqa_model(shape))
        self.binding = self.session.io_binding()
        inputs = {"query": self.query, "key": self.new[0], "value": self.new[1]}
        inputs |= {"past_key": self.past[0], "past_value": self.past[1]}
        for name, array in (inputs | {"seqlens_k": self.last_places, "total_len": self.total}).items():
            self.binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        outputs = {"output": self.output, "present_key": self.past[0], "present_value": self.past[1]}
        for name, array in outputs.items():
            self.binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def step(self) -> None:
        self.session.run_with_iobinding(self.binding)


class Paged:
    """The same over blocks that lie anywhere. A block of one head is a row of the pool: one `take` gathers all."""

    def __init__(self, shape: Shape, streams: int, context: int) -> None:
        self.attention = Attention(shape, streams, context, context)
        blocks, heads = context // BLOCK_TOKENS, shape.kv_heads
        size = (streams, heads, blocks, BLOCK_TOKENS * shape.width)
        table = np.random.default_rng(1).permutation(streams * blocks).reshape(streams, 1, blocks)
        self.rows = table * heads + np.arange(heads)[:, None]  # (B, G, blocks)
        self.gathered = [past.reshape(size) for past in self.attention.past]
        self.pools = [np.empty((self.rows.size, size[-1]), dtype=np.float32) for _ in range(2)]
        for pool, gathered in zip(self.pools, self.gathered, strict=True):
            pool[self.rows] = gathered
        self.last_rows, self.last_places = self.rows[:, :, -1], slice(-shape.width, None)

    def step(self) -> None:
        for pool, gathered in zip(self.pools, self.gathered, strict=True):
            pool.take(self.rows, axis=0, out=gathered, mode="clip")
        self.attention.step()
        for pool, gathered in zip(self.pools, self.gathered, strict=True):
            pool[self.last_rows, self.last_places] = gathered[:, :, -1, self.last_places]


def gqa_model(shape: Shape) -> bytes:
    names = ["query", "key", "value", "past_key", "past_value", "seqlens_k", "total_len"]
    node = helper.make_node(
        "GroupQueryAttention",
        names,
        ["output", "present_key", "present_value"],
        domain="com.microsoft",
        num_heads=shape.heads,
        kv_num_heads=shape.kv_heads,
    )
    past = ["B", shape.kv_heads, "C", shape.width]
    kv, wide = ["B", "S", shape.kv_heads * shape.width], ["B", "S", shape.heads * shape.width]
    shapes = dict(zip(names, [wide, kv, kv, past, past, ["B"], []], strict=True))
    return model_of(node, shapes, {"output": wide, "present_key": past, "present_value": past})


def model_of(node: object, inputs: Shapes, outputs: Shapes, kind: int = TensorProto.FLOAT) -> bytes:
    whole = {"seqlens_k", "total_len", "cumulative_sequence_length", "past_seqlens", "block_table"}

    def ports(shapes: Shapes) -> list[object]:
        kinds = {name: TensorProto.INT32 if name in whole else kind for name in shapes}
        return [helper.make_tensor_value_info(name, kinds[name], shape) for name, shape in shapes.items()]

    graph = helper.make_graph([node], "attention", ports(inputs), ports(outputs))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def session(model: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def paged_attention_on_cpu(shape: Shape) -> str:
    """What ONNX Runtime says of a graph of one PagedAttention, which knows 16-bit values only; empty if it takes it."""
    wide, kv = ["N", shape.heads * shape.width], ["N", shape.kv_heads * shape.width]
    pool: list[int | str] = ["P", BLOCK_TOKENS, shape.kv_heads, shape.width]
    inputs = {"query": wide, "key": kv, "value": kv, "key_cache": pool, "value_cache": pool}
    inputs |= {"cumulative_sequence_length": ["M"], "past_seqlens": ["B"], "block_table": ["B", "K"]}
    outputs = {"output": wide, "key_cache_out": pool, "value_cache_out": pool}
    node = helper.make_node(
        "PagedAttention",
        list(inputs),
        list(outputs),
        domain="com.microsoft",
        num_heads=shape.heads,
        kv_num_heads=shape.kv_heads,
    )
    try:
        session(model_of(node, inputs, outputs, TensorProto.FLOAT16))
    except Exception as error:  # the runtime raises its own kinds
        return str(error)
    return ""


def cpu_us(work: Callable[[], None], times: int) -> float:
    """Microseconds of CPU time of one call."""
    start = time.process_time_ns()
    for _ in range(times):
        work()
    return (time.process_time_ns() - start) / times / 1000


def in_turns(works: Sequence[Callable[[], None]], rounds: int) -> list[list[float]]:
    """For each work its rounds; about 20 ms of each in a round, so that a busy neighbour meets all alike."""
    times = [max(1, int(20_000 / max(1.0, min(cpu_us(work, 1) for _ in range(3))))) for work in works]
    return list(
        map(list, zip(*[[cpu_us(w, n) for w, n in zip(works, times, strict=True)] for _ in range(rounds)], strict=True))
    )


def pair(name: str, other: str, runs: Sequence[float], others: Sequence[float], note: str) -> list[Record]:
    """What we do, and what it is compared to."""
    ratio = statistics.median(a / b for a, b in zip(runs, others, strict=True))
    base, value = statistics.median(others), statistics.median(runs)
    return [
        Record(name=other, value=round(base, 2), unit="us", runs=rounded(others), command=COMMAND, note=note),
        Record(
            name=name,
            value=round(value, 2),
            unit="us",
            baseline=round(base, 2),
            ratio=round(ratio, 3),
            runs=rounded(runs),
            command=COMMAND,
            note=note,
        ),
    ]


def rounded(runs: Sequence[float]) -> list[float]:
    return [round(run, 2) for run in runs]


def layouts(shape: Shape, streams: int, context: int, rounds: int) -> list[Record]:
    slotted, paged = Attention(shape, streams, context, max(CONTEXTS)), Paged(shape, streams, context)
    slotted.past[0][:, :, :context], slotted.past[1][:, :, :context] = paged.attention.past
    slotted.step()
    paged.step()
    if not np.array_equal(slotted.output, paged.attention.output):
        raise SystemExit("paged and slotted attention differ")
    in_slots, in_pages = in_turns((slotted.step, paged.step), rounds)
    place = f"{shape.name}/{streams}/{context}"
    note = f"attention of one layer, {streams} streams of {context} tokens; CPU time, one thread"
    return pair(f"kv/paged/{place}", f"kv/slotted/{place}", in_pages, in_slots, note)


def restoring(rounds: int) -> list[Record]:
    """A prefix out of the cache into a slot, its digests included, against computing it with the demo's decoder."""
    deployment = Deployment.load(DEMO)
    folder = deployment.repository_path / "llm" / "1"
    manifest, llm = DecoderManifest.load(folder), deployment.llm
    size = llm.prefix_cache.block_tokens
    slots = KvSlots(2, manifest.num_layers, (manifest.num_kv_heads, llm.context_tokens, manifest.head_dim))
    decoder = OnnxDecoder(folder, manifest, slots, threads=1)
    cache = PrefixCache(llm.prefix_cache, block_shape=slots.block_shape(size), clock_s=time.monotonic)
    ids = np.random.default_rng(0).integers(manifest.image_token_id + 1, manifest.vocab_size, PREFIX_TOKENS)
    rows, places = np.zeros((0, manifest.hidden_size), dtype=np.float32), np.zeros(0, dtype=np.int64)

    def links() -> Chain:
        top = root(cache_scope="", revision="", adapter="")
        return chain(root=top, input_ids=ids, visual_spans=(), media_keys=(), block_tokens=size)

    def restore() -> None:
        blocks = cache.find(links(), 0)
        if len(blocks) != PREFIX_TOKENS // size:
            raise SystemExit("the prefix is not in the cache")
        for number, block in enumerate(blocks):
            slots.write(1, number * size, block)

    def compute() -> None:
        decoder.prefill(0, ids, 0, rows, places)

    def keep() -> None:
        cache.clear()
        cache.keep(links(), PREFIX_TOKENS // size, lambda number: slots.view(0, number * size, (number + 1) * size))

    compute()
    keep()
    restored, computed, kept = in_turns((restore, compute, keep), rounds)
    note = f"{PREFIX_TOKENS} tokens of the demo in blocks of {size}, digests included; CPU time, one thread"
    return [
        *pair("prefix/restore", "prefix/compute", restored, computed, note),
        pair("prefix/keep", "prefix/compute", kept, computed, note)[1],
    ]


def evicting(rounds: int) -> list[Record]:
    """Keeping a prompt of four blocks in a full cache, each of which drops another; tiny blocks, so books alone."""
    block = np.zeros(1, dtype=np.float32)

    def full(num_blocks: int) -> Callable[[], None]:
        limits = PrefixLimits(block_tokens=1, max_bytes=block.nbytes * num_blocks, max_age_s=3600.0)
        cache = PrefixCache(limits, block_shape=block.shape, clock_s=time.monotonic)
        numbers = count()

        def keep() -> None:
            cache.keep([Link(next(numbers).to_bytes(32, "big"), b"") for _ in range(4)], 4, lambda _: block)

        while cache.figures().evicted_for_room == 0:
            keep()
        return keep

    few, many = HELD_BLOCKS
    with_few, with_many = in_turns([full(few), full(many)], rounds)
    note = "a prompt of 4 new blocks in a full cache of so many; CPU time, one thread"
    return pair(f"prefix/evict/{many}", f"prefix/evict/{few}", with_many, with_few, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=[shape.name for shape in SHAPES])
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    shapes = [shape for shape in SHAPES if arguments.only in (None, shape.name)]
    records = [
        record
        for shape in shapes
        for streams in STREAMS
        for context in CONTEXTS
        for record in layouts(shape, streams, context, arguments.rounds)
    ]
    said = paged_attention_on_cpu(shapes[0])
    records += [
        Record(name="kv/paged_attention_on_cpu", value=float(not said), unit="sessions", command=COMMAND, note=said),
        *evicting(arguments.rounds),
        *restoring(arguments.rounds),
    ]
    for record in records:
        print(f"{record.name:28} {record.value:12,.2f} {record.unit} {record.ratio or '':>8} {record.note}", flush=True)
    if arguments.only is None:
        print(write("kv_memory", records))


if __name__ == "__main__":
    main()
