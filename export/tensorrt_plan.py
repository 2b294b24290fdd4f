"""An ONNX file and its profiles -> a serialized plan: one builder for TensorRT 10 and 11 and for TensorRT for RTX.

Networks are strongly typed: precision lies in the graph, never in builder flags. Only the module handed in knows
whether there is a GPU; what a plan is good for, and where it goes, is not known here.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import onnx

from proteus.deployment import DeploymentError
from proteus.engines import replacing
from proteus.profiles import Profile

STANDARD_DOMAINS = ("", "ai.onnx")
MORE_WORKSPACE = "raise gpu.workspace_bytes over what was requested, or lower the largest batch or size of the stage"
OTHERWISE = 'choose another precision of the stage, or runtime = "onnxruntime", and report the graph'
MAX_TOLD = 4  # errors of one build that its message holds; the first ones tell most
Phase = Callable[[str, int, int], None]  # name, steps done, of how many; all of them: it has ended


class BuildError(DeploymentError):
    """TensorRT cannot make an engine of a graph; the text names stage and cause."""

    code = "engine_not_built"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to build."""

    optimization_level: int
    workspace_bytes: int
    tf32: bool  # fp32 products by way of TF32, as precise as fp16
    timing_cache: Path | None = None  # TensorRT for RTX has none
    sms: tuple[int, ...] = ()  # compute capabilities x 10, of TensorRT for RTX alone; none: the GPU that is here


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was built."""

    content: Any  # bytes-like
    num_layers: int
    build_s: float


def build_plan(
    trt: Any, graph: Path, stage: str, profiles: Sequence[Profile], settings: Settings, phase: Phase = lambda *_: None
) -> Plan:
    """Raises BuildError naming stage and cause, and KeyboardInterrupt where somebody would not wait."""
    check_operators(graph, stage)
    begin = time.monotonic()
    logger, monitor = _listener(trt), _monitor(trt, phase)
    with _told_of_ctrl_c(monitor):
        builder = trt.Builder(logger)
        builder.max_threads = 1
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        config = builder.create_builder_config()
        parser = trt.OnnxParser(network, logger)
        _parse(parser, graph, stage)
        check_profiles(network, stage, profiles)
        _add_profiles(builder, config, stage, profiles, logger)
        _configure(trt, config, settings)
        config.progress_monitor = monitor
        content = None if monitor.failure else builder.build_serialized_network(network, config)
    if monitor.failure is not None:
        raise monitor.failure
    if content is None:
        told = _told(logger)
        raise BuildError(
            f"{stage}: TensorRT {trt.__version__} builds no engine of {graph.name}: {told}",
            fix=MORE_WORKSPACE if "OutOfMemory" in told else OTHERWISE,
        )
    if settings.timing_cache is not None:
        save_timings(config, settings.timing_cache)
    return Plan(content=content, num_layers=network.num_layers, build_s=time.monotonic() - begin)


def check_operators(graph: Path, stage: str) -> int:
    """The number of nodes; raises BuildError where one is not of ONNX: TensorRT would take it for a plugin."""
    model = onnx.load(graph, load_external_data=False)
    nodes = list(_nodes(model.graph))
    foreign = sorted({f"{node.domain}.{node.op_type}" for node in nodes if node.domain not in STANDARD_DOMAINS})
    if foreign:
        raise BuildError(
            f"{stage}: {graph.name} has operators that only ONNX Runtime knows: {', '.join(foreign[:MAX_TOLD])}",
            limit="graphs for TensorRT have operators of ONNX alone",
            fix="export the checkpoint again",
        )
    return len(nodes)


def check_supported(trt: Any, graph: Path, stage: str) -> None:
    """TensorRT would run every node; raises BuildError naming those that it would not."""
    logger = _listener(trt)
    network = trt.Builder(logger).create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.supports_model_v2(graph.read_bytes(), str(graph)):
        raise BuildError(f"{stage}: TensorRT does not run all of {graph.name}: {told_of_nodes(parser)}", fix=OTHERWISE)


def told_of_nodes(parser: Any) -> str:
    """The first errors of a parser, each with its node."""
    errors = (parser.get_error(index) for index in range(parser.num_errors))
    return "; ".join(
        f"node {error.node()} {error.node_name()} ({error.node_operator()}): {' '.join(error.desc().split())}"
        for error in islice(errors, MAX_TOLD)
    )


def check_profiles(network: Any, stage: str, profiles: Sequence[Profile]) -> None:
    """The graph takes every shape that the profiles ask for; raises BuildError naming input and dim."""
    inputs = {tensor.name: tuple(tensor.shape) for tensor in map(network.get_input, range(network.num_inputs))}
    for profile in profiles:
        if set(profile.shapes) != set(inputs):
            raise BuildError(
                f"{stage}: the graph reads {', '.join(sorted(inputs))}, "
                f"profile {profile.name} has {', '.join(sorted(profile.shapes))}",
                fix="export the checkpoint again",
            )
        for name, (least, best, most) in profile.shapes.items():
            dims = inputs[name]
            ordered = all(low <= mid <= high for low, mid, high in zip(least, best, most, strict=True))
            if not ordered or len(least) != len(dims):
                raise BuildError(
                    f"{stage}: profile {profile.name} has min {least}, opt {best}, max {most} for {name} {dims}",
                    limit="min ≤ opt ≤ max in every dim, and as many dims as the graph's",
                )
            fixed = [axis for axis, dim in enumerate(dims) if dim >= 0 and not least[axis] == most[axis] == dim]
            if fixed:
                axis = fixed[0]
                raise BuildError(
                    f"{stage}: dim {axis} of {name} is fixed at {dims[axis]} in the graph, "
                    f"and profile {profile.name} wants {least[axis]} to {most[axis]}",
                    fix="export the checkpoint again: that dim was traced as a number",
                )


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Those of subgraphs too."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _parse(parser: Any, graph: Path, stage: str) -> None:
    if not parser.parse_from_file(str(graph)):
        raise BuildError(f"{stage}: TensorRT cannot read {graph.name}: {told_of_nodes(parser)}", fix=OTHERWISE)


def _add_profiles(builder: Any, config: Any, stage: str, profiles: Sequence[Profile], logger: Any) -> None:
    for profile in profiles:
        made = builder.create_optimization_profile()
        for name, span in profile.shapes.items():
            made.set_shape(name, *span)
        if config.add_optimization_profile(made) < 0:
            raise BuildError(f"{stage}: TensorRT refuses profile {profile.name}: {_told(logger)}")


def _configure(trt: Any, config: Any, settings: Settings) -> None:
    config.builder_optimization_level = settings.optimization_level
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.workspace_bytes)
    if not settings.tf32:
        config.clear_flag(trt.BuilderFlag.TF32)
    if settings.sms:
        config.num_compute_capabilities = len(settings.sms)
        for index, sm in enumerate(settings.sms):
            config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{sm}"), index)
    if settings.timing_cache is not None:
        load_timings(config, settings.timing_cache)


def load_timings(config: Any, file: Path) -> None:
    """What was learnt before, where it is of this builder and this GPU, whatever the file's name says; else nothing."""
    if file.exists():
        cache = config.create_timing_cache(file.read_bytes())
        if cache is not None and config.set_timing_cache(cache, False):
            return
    config.set_timing_cache(config.create_timing_cache(b""), False)


def save_timings(config: Any, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as path:
        path.write_bytes(config.get_timing_cache().serialize())


def _listener(trt: Any) -> Any:
    class Listener(trt.ILogger):  # type: ignore[misc]
        """Keeps what TensorRT tells of an error: its calls only say that there was one."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.errors.append(" ".join(message.split()))

    return Listener()


def _told(logger: Any) -> str:
    return "; ".join(logger.errors[:MAX_TOLD]) or "it does not say why"


def _monitor(trt: Any, phase: Phase) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        """TensorRT calls it from threads of its own. No exception may reach it: the first one ends the build."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.failure: BaseException | None = None
            self.steps: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str, num_steps: int) -> None:
            self.steps[phase_name] = num_steps
            self._tell(phase_name, 0)

        def step_complete(self, phase_name: str, step: int) -> bool:
            self._tell(phase_name, step + 1)
            return self.failure is None

        def phase_finish(self, phase_name: str) -> None:
            self._tell(phase_name, self.steps.get(phase_name, 0))

        def _tell(self, phase_name: str, done: int) -> None:
            try:
                phase(phase_name, done, self.steps.get(phase_name, 0))
            except BaseException as error:
                self.failure = self.failure or error

    return Monitor()


@contextmanager
def _told_of_ctrl_c(monitor: Any) -> Iterator[None]:
    """Python raises it wherever its code runs next, which is mostly a call of TensorRT's: there it would be lost."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def told(*_: object) -> None:
        monitor.failure = monitor.failure or KeyboardInterrupt()

    before = signal.signal(signal.SIGINT, told)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
