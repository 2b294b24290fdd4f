"""TARGET=tensorrt from checkpoint to served engines. TensorRT for RTX stands for TensorRT, ONNX Runtime for the GPU."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorrt_rtx as trt

from export import __main__ as command
from export import engines_host
from export.engines import build_engines
from export.engines_host import Host, Runner, hosts_here
from export.engines_parity import compare_engine, of_other_sizes, pieces
from export.precision import UnsupportedPrecision
from export.tensorrt_plan import BuildError
from proteus.deployment import Deployment, DeploymentError
from proteus.engines import Engine, EngineStage, builds_of, graph_path, plan_path
from proteus.onnx_session import open_session
from proteus.profiles import Profile, fitting, profiles_of
from tests.changed_deployment import changed

STAGES: tuple[EngineStage, ...] = ("vision_encoder", "connector")


@pytest.fixture
def deployment(tiny_export: Path, tmp_path: Path) -> Deployment:
    shutil.copytree(tiny_export, tmp_path / "tiny")
    return Deployment.load(tmp_path / "tiny" / "deployment.toml")


def on_host(
    deployment: Deployment,
    stages: Sequence[EngineStage] = STAGES,
    *,
    off: Callable[[np.ndarray], np.ndarray] = lambda array: array,
    **facts: Any,
) -> dict[EngineStage, Host]:
    """A host whose engines compute what ONNX Runtime does, changed by `off`."""

    def run(plan: Path) -> Runner:
        stage = Engine.load(plan.with_name("engine.json")).stage
        session = open_session(graph_path(deployment.repository_path, stage), 1)
        names = [port.name for port in session.get_outputs()]

        def answer(inputs: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
            outputs = dict(zip(names, session.run(names, dict(inputs)), strict=True))
            assert {name: array.shape for name, array in outputs.items()} == dict(shapes)
            return {name: off(array) if array.dtype == np.float32 else array for name, array in outputs.items()}

        return answer

    host = replace(Host(trt=trt, sm=89, sms=(89,), open=run), **facts)
    return dict.fromkeys(stages, host)


def served(deployment: Deployment) -> list[bool]:
    return [plan_path(deployment.repository_path, stage).exists() for stage in STAGES]


def test_engines_are_built_compared_kept_and_served(deployment: Deployment) -> None:
    said: list[str] = []
    made = build_engines(deployment, on_host(deployment), progress=said.append)
    assert [(one.engine.stage, one.built) for one in made] == [(stage, True) for stage in STAGES]
    assert served(deployment) == [True, True]
    for stage, one in zip(STAGES, made, strict=True):
        engine = Engine.load(plan_path(deployment.repository_path, stage).with_name("engine.json"))
        assert engine.model_dump_json() == one.engine.model_dump_json()
        assert (engine.tensorrt_version, engine.sm, engine.precision) == (trt.__version__, 89, "fp16")
        assert engine.report["graph"]["outputs"][0]["non_finite"] == 0
        assert engine.report["engine"]["num_samples"] > 0
        assert [path.name for path in (one.folder.parent).iterdir()] == [f"{trt.__version__}-sm89-fp16"]
        assert sorted(path.name for path in one.folder.parent.parent.iterdir() if path.name.startswith(".")) == []
    again = build_engines(deployment, on_host(deployment), progress=said.append)
    assert [one.built for one in again] == [False, False]
    assert said[-3:-1] == [f"{stage}: {trt.__version__}-sm89-fp16 is kept already" for stage in STAGES]


def test_two_exports_build_a_stage_once_and_clear_what_a_killed_one_left(deployment: Deployment) -> None:
    folder = deployment.repository_path / "connector"
    left = folder / ".engine-killed"
    left.mkdir()
    (left / "model.plan").write_bytes(b"half")
    other = os.open(folder, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    said: list[str] = []

    def progress(step: str) -> None:
        said.append(step)
        if "waiting" in step:
            assert left.exists()
            fcntl.flock(other, fcntl.LOCK_UN)

    build_engines(deployment, on_host(deployment, ["connector"]), progress=progress)
    os.close(other)
    assert said[0] == "connector: waiting for another export, which builds it"
    assert not left.exists()


@pytest.mark.parametrize(
    ("off", "words"),
    [
        (lambda array: array * 1.5, ["connector in fp16", "off by 50", "choose"]),
        (lambda array: np.full_like(array, np.nan), ["connector in fp16", "not finite"]),
    ],
)
def test_an_engine_whose_numbers_are_off_is_neither_kept_nor_served(
    deployment: Deployment, off: Callable[[np.ndarray], np.ndarray], words: list[str]
) -> None:
    build_engines(deployment, on_host(deployment, ["connector"]))
    before = plan_path(deployment.repository_path, "connector").read_bytes()
    text = deployment.path.read_text().replace("optimization_level = 3", "optimization_level = 2")
    deployment.path.write_text(text)
    other = Deployment.load(deployment.path)
    with pytest.raises(UnsupportedPrecision) as refused:
        build_engines(other, on_host(other, ["connector"], off=off))
    assert [word for word in words if word not in str(refused.value)] == []
    assert plan_path(deployment.repository_path, "connector").read_bytes() == before
    assert len(builds_of(deployment.repository_path, "connector")) == 1


def test_one_stage_that_cannot_be_built_leaves_what_is_served(deployment: Deployment) -> None:
    graph = graph_path(deployment.repository_path, "connector")
    graph.write_bytes(graph_path(deployment.repository_path, "vision_encoder").read_bytes())
    with pytest.raises((BuildError, ValueError, UnsupportedPrecision)):
        build_engines(deployment, on_host(deployment, open=None))
    assert served(deployment) == [False, False]
    assert [len(builds_of(deployment.repository_path, stage)) for stage in STAGES] == [1, 0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('[gpu.connector]\nruntime = "tensorrt"', '[gpu.connector]\nruntime = "torch"'),
        ("[gpu.", "[cut."),
    ],
)
def test_a_deployment_that_runs_nothing_by_tensorrt_is_told_so(deployment: Deployment, old: str, new: str) -> None:
    text = deployment.path.read_text()
    text = text.partition("[gpu]")[0] if new == "[cut." else text.replace(old, new)
    deployment.path.write_text(text)
    with pytest.raises(DeploymentError, match=r"runs nothing of this checkpoint by TensorRT.*\[gpu\]"):
        build_engines(Deployment.load(deployment.path), on_host(deployment, ["connector"]))


def test_the_command_builds_engines_of_what_is_exported_already(
    deployment: Deployment, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "tensorrt_here", lambda: trt)
    monkeypatch.setattr(command, "hosts_here", lambda path, gpu, stages: on_host(deployment, stages))
    graph = graph_path(deployment.repository_path, "connector")
    before = graph.stat().st_mtime_ns
    words = [str(tiny_checkpoint), "--out", str(deployment.path.parent), "--target", "tensorrt"]
    assert command.main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [engine["stage"] for engine in document["engines"]] == list(STAGES)
    assert (served(deployment), graph.stat().st_mtime_ns) == ([True, True], before)
    assert command.main(words) == 0
    told = capsys.readouterr()
    assert "kept" in told.out
    assert f"proteus serve --deployment {deployment.path} --hardware gpu" in told.out
    assert "tracing" not in told.err


def test_the_command_exports_first_what_is_of_another_checkpoint(
    deployment: Deployment, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = deployment.repository_path / "llm" / "1" / "export.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"revision": "0"}))
    said: list[str] = []
    monkeypatch.setattr("export.onnx_first.export_checkpoint", lambda *words, progress: said.append("exported"))
    from export.onnx_first import exported

    assert exported(tiny_checkpoint, deployment.path.parent, said.append) == deployment.path
    assert said == ["looking for the ONNX files", "exported"]
    manifest.unlink()
    exported(tiny_checkpoint, deployment.path.parent, said.append)
    assert said[-1] == "exported"


def test_ctrl_c_is_told_in_one_line(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "tensorrt_here", interrupted)
    assert command.main([str(tiny_checkpoint), "--target", "tensorrt"]) == 130
    assert capsys.readouterr().err == "stopped; what was not finished is not installed\n"


def imports(monkeypatch: pytest.MonkeyPatch, version: str | None, capabilities: Mapping[int, int | None]) -> None:
    """A machine with this TensorRT, or none, and these GPUs."""

    def found(name: str) -> Any:
        if version is None:
            raise ImportError(f"No module named {name!r}")
        return SimpleNamespace(__version__=version)

    monkeypatch.setattr(engines_host.importlib, "import_module", found)
    monkeypatch.setattr(engines_host, "compute_capability", capabilities.get)


@pytest.mark.parametrize(
    ("version", "capabilities", "devices", "words"),
    [
        (None, {0: 90}, [0], ["TensorRT is not installed", "26.10-trtllm-python-py3", "make check-tensorrt"]),
        ("8.6.1", {0: 90}, [0], ["TensorRT here is 8.6.1", "limit: 10.0 and later"]),
        ("11.4.0.1", {}, [0], ["no GPU 0 is here", "--gpus all", "make check-tensorrt"]),
        ("11.4.0.1", {0: 90}, [0, 1], ["no GPU 1 is here"]),
        ("11.4.0.1", {0: 90, 1: 89}, [0, 1], ["0 has 9.0, 1 has 8.9", "deployment.toml", "devices of one kind"]),
    ],
)
def test_what_a_host_lacks_is_told_with_the_fix(
    monkeypatch: pytest.MonkeyPatch,
    version: str | None,
    capabilities: Mapping[int, int | None],
    devices: list[int],
    words: list[str],
) -> None:
    imports(monkeypatch, version, capabilities)
    with pytest.raises(DeploymentError) as refused:
        Host.here(Path("deployment.toml"), devices)
    assert [word for word in words if word not in str(refused.value)] == []


def test_a_host_that_has_all_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    imports(monkeypatch, "11.4.0.1", {0: 90, 1: 90})
    host = Host.here(Path("deployment.toml"), [0, 1])
    assert (host.trt.__version__, host.sm, host.sms) == ("11.4.0.1", 90, ())
    assert host.open is not None


def test_each_stage_is_built_on_the_gpu_that_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT builds for CUDA's device, which is the first one where nobody chose."""
    imports(monkeypatch, "11.4.0.1", {0: 90, 1: 89, 2: 120})
    used: list[int] = []
    chosen = SimpleNamespace(use=lambda: used.append(asked[-1]))
    asked: list[int] = []
    monkeypatch.setattr(engines_host, "CudaDevice", lambda device: asked.append(device) or chosen)
    gpu = changed({"gpu.devices": [1], "gpu.denoiser.device": 2}).gpu
    assert gpu is not None
    hosts = hosts_here(Path("deployment.toml"), gpu, ["vision_encoder", "denoiser"])
    assert {stage: host.sm for stage, host in hosts.items()} == {"vision_encoder": 89, "denoiser": 120}
    for host in hosts.values():
        host.use()
    assert used == [1, 2]


def test_a_device_is_chosen_before_anything_is_built(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*words: Any) -> None:
        raise BuildError("too early" if not used else "chosen")

    used: list[bool] = []
    monkeypatch.setattr("export.engines.build_plan", build)
    with pytest.raises(BuildError, match="chosen"):
        build_engines(deployment, on_host(deployment, ["connector"], use=lambda: used.append(True)))


def test_samples_are_cut_to_the_batches_of_the_profile_that_takes_them(deployment: Deployment) -> None:
    profiles = profiles_of(deployment, "vision_encoder")
    side = profiles[0].shapes["pixel_values"][0][-1]
    given = {"pixel_values": np.arange(11 * 3 * side * side, dtype=np.float32).reshape(11, 3, side, side)}
    cut = list(pieces(given, profiles))
    assert [len(piece["pixel_values"]) for piece in cut] == [8, 3]
    assert np.array_equal(np.concatenate([piece["pixel_values"] for piece in cut]), given["pixel_values"])
    assert list(pieces({"pixel_values": np.zeros((1, 3, 1, 1), np.float32)}, profiles)) == []
    assert list(pieces(given, [Profile(name="fixed", shapes={})])) == []


@pytest.mark.parametrize("stage", ["denoiser", "vae_decoder"])
@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, ["96x64", "64x96", "96x96"]),
        ({"gpu.sizes": ["64x64", "96x96"]}, ["96x96", "any"]),
        ({"gpu.sizes": ["64x64", "96x64", "96x96"]}, ["96x64", "96x96", "any"]),
        ({"gpu.sizes": ["96x96"], "draw.default_size": "96x96"}, ["96x96"]),  # samples of 64x64 are taken by any
    ],
)
def test_a_row_of_samples_is_made_for_each_profile_that_takes_none(
    stage: EngineStage, changes: Mapping[str, Any], names: list[str]
) -> None:
    profiles = profiles_of(changed(changes), stage)
    given = {name: np.ones((2, *best[1:]), np.float32) for name, (_, best, _) in profiles[0].shapes.items()}
    given["latents"] = np.arange(2 * 8 * 8 * 8, dtype=np.float32).reshape(2, 8, 8, 8)
    made = list(of_other_sizes([given], profiles))
    numbers = [fitting(profiles, {name: array.shape for name, array in sample.items()}) for sample in made]
    assert [profiles[number].name for number in numbers if number is not None] == names
    for sample in made:
        assert set(sample) == set(given)
        assert {len(array) for array in sample.values()} == {1}
        assert np.array_equal(sample["latents"][:, :, :8, :8], given["latents"][:1])


def test_an_engine_that_is_wrong_at_one_size_alone_is_refused() -> None:
    deployment = changed({})
    graph = graph_path(deployment.repository_path, "vae_decoder")
    session, profiles = open_session(graph, 1), profiles_of(deployment, "vae_decoder")
    wrong: list[tuple[int, ...]] = []

    def run(inputs: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        outputs = dict(zip(shapes, session.run(list(shapes), dict(inputs)), strict=True))
        is_wrong = inputs["latents"].shape[2:] in wrong
        return {name: 255 - array if is_wrong else array for name, array in outputs.items()}

    samples = [{"latents": np.random.default_rng(0).standard_normal((1, 8, 8, 8)).astype(np.float32)}]
    report = compare_engine(run, graph, "vae_decoder", "fp16", samples, profiles)
    assert (report.num_samples, report.profiles) == (4, ("64x64", "96x64", "64x96", "96x96"))
    wrong.append((8, 12))
    with pytest.raises(UnsupportedPrecision, match="vae_decoder in fp16"):
        compare_engine(run, graph, "vae_decoder", "fp16", samples, profiles)


@pytest.mark.parametrize(("off", "taken"), [(1, True), (2, False)])
def test_a_pixel_of_fp32_may_be_rounded_to_its_other_side(off: int, taken: bool) -> None:
    deployment = changed({})
    graph = graph_path(deployment.repository_path, "vae_decoder")
    session, profiles = open_session(graph, 1), profiles_of(deployment, "vae_decoder")[:1]

    def run(inputs: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        outputs = dict(zip(shapes, session.run(list(shapes), dict(inputs)), strict=True))
        return {
            name: np.where(array < 128, array + off, array - off).astype(array.dtype) for name, array in outputs.items()
        }

    samples = [{"latents": np.random.default_rng(0).standard_normal((1, 8, 8, 8)).astype(np.float32)}]
    told = nullcontext() if taken else pytest.raises(UnsupportedPrecision, match="off by 7.8e-03 of its scale")
    with told:
        compare_engine(run, graph, "vae_decoder", "fp32", samples, profiles)
