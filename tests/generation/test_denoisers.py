"""The runtimes of the denoiser: each that runs here, and TensorRT's code over a stand-in, keep one contract."""

from __future__ import annotations

import gc
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proteus.deployment import DeploymentError
from proteus.generation import onnx_denoiser
from proteus.generation.denoisers import ON_CPU, Placement, open_denoiser
from proteus.generation.onnx_denoiser import OnnxDenoiser
from proteus.generation.tensorrt_denoiser import TensorRtDenoiser, padded_rows
from proteus.generation.torch_denoiser import TorchDenoiser
from proteus.limits_gpu import Gpu
from proteus.manifest import DrawManifest
from proteus.onnx_session import open_session
from tests import fake_tensorrt
from tests.fake_tensorrt import Fakes, Profile, write_plan
from tests.generation.denoiser_contract import MAX_ROWS, SIZES, SUM, DenoiserContract, Make, Work
from tests.generation.denoisers import CHANNELS, POOLED, TOKENS, WIDTH, add_unet_program, export_sum, manifest_of
from tests.generation.painters import engine_limits

LIMITS = engine_limits(max_rows=MAX_ROWS)


def profile(least: tuple[int, int], most: tuple[int, int], **more: tuple[int, ...]) -> Profile:
    """Of pictures between two sizes."""
    texts = {"timestep": (), "text_states": (TOKENS, WIDTH), **more}
    spans: Profile = {"latents": tuple((rows, CHANNELS, *side) for rows, side in ((1, least), (2, most), (6, most)))}  # type: ignore[dict-item]
    return spans | {name: tuple((rows, *shape) for rows in (1, 2, 6)) for name, shape in texts.items()}  # type: ignore[misc]


@pytest.fixture(scope="session")
def sum_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = export_sum(tmp_path_factory.mktemp("sum"))
    write_plan(
        folder / "denoiser.plan", folder / "denoiser.onnx", [profile((4, 4), (8, 8), pooled=(POOLED,), guidance=())]
    )
    return folder


@pytest.fixture(scope="session")
def unet_folder(denoiser_folder: Path) -> Path:
    profiles = [profile((4, 4), (32, 32)), *(profile(size, size) for size in SIZES)]
    write_plan(denoiser_folder / "denoiser.plan", denoiser_folder / "denoiser.onnx", profiles)
    return add_unet_program(denoiser_folder)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return fake_tensorrt.install(monkeypatch)


def _open(runtime: str, device: int | None = None) -> Any:
    def opened(folder: Path, manifest: DrawManifest) -> Any:
        return open_denoiser(folder, manifest, LIMITS, Placement(runtime=runtime, device=device))

    return opened


@cache
def _torch(folder: Path, pooled_width: int) -> Any:
    """Opened once: torch takes seconds to read a program."""
    return _open("torch")(folder, SUM if pooled_width else manifest_of())


@pytest.fixture(params=["onnxruntime", "onnxruntime, copied", "torch", "tensorrt"])
def make(request: pytest.FixtureRequest, unet_folder: Path, sum_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    runtime: str = request.param
    if runtime == "onnxruntime, copied":  # as on a GPU, to memory that is here
        monkeypatch.setattr(onnx_denoiser, "on_host", onnx_denoiser.on_device)
        runtime = "onnxruntime"
    if runtime == "tensorrt":
        fake_tensorrt.install(monkeypatch)
        return Make(open=_open(runtime, 0), unet=unet_folder, sum=sum_folder)
    if runtime == "torch":
        return Make(open=lambda path, facts: _torch(path, facts.pooled_width), unet=unet_folder, sum=sum_folder)
    return Make(open=_open(runtime), unet=unet_folder, sum=sum_folder)


class TestContract(DenoiserContract):
    pass


@pytest.mark.parametrize(
    ("num_rows", "padded"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (6, 6), (7, 8), (9, 12), (13, 16), (17, 24)]
)
def test_few_numbers_of_rows_are_bound_on_a_gpu(num_rows: int, padded: int) -> None:
    assert padded_rows(num_rows) == padded


def tensorrt_denoiser(folder: Path) -> TensorRtDenoiser:
    return TensorRtDenoiser(folder / "denoiser.plan", manifest_of(), max_rows=MAX_ROWS, device=0)


def test_the_smallest_profile_that_fits_is_taken_and_later_calls_are_launched_as_graphs(
    fakes: Fakes, unet_folder: Path
) -> None:
    denoiser, work = tensorrt_denoiser(unet_folder), Work.of(unet_folder, (8, 12))
    engine = fakes.trt.engines[0]
    first = work.predicted(denoiser, 0, 4)
    assert (engine.contexts[-1]._profile, fakes.cuda.launches) == (2, 0)
    again = [work.predicted(denoiser, 0, 4) for _ in range(3)]
    assert fakes.cuda.launches == 3
    assert all(np.array_equal(first, other) for other in again)


@pytest.mark.parametrize("fault", ["refuses_capture", "has_no_room_for_graphs"])
def test_a_call_that_cannot_be_captured_runs_without_a_graph(fault: str, fakes: Fakes, unet_folder: Path) -> None:
    setattr(fakes.cuda, fault, True)
    denoiser, work = tensorrt_denoiser(unet_folder), Work.of(unet_folder, (8, 8))
    first = work.predicted(denoiser, 0, 2)
    assert all(np.array_equal(first, work.predicted(denoiser, 0, 2)) for _ in range(2))
    assert fakes.cuda.launches == 0


def test_five_rows_run_as_six_and_the_sixth_is_counted_as_padded(fakes: Fakes, unet_folder: Path) -> None:
    assert tensorrt_denoiser(unet_folder).rows((8, 8), 5).num_padded == 1


def test_memory_of_the_gpu_and_pinned_memory_are_given_back(fakes: Fakes, unet_folder: Path) -> None:
    denoiser = tensorrt_denoiser(unet_folder)
    Work.of(unet_folder, (8, 8)).predicted(denoiser, 0, 2)
    assert fakes.cuda.host_memory
    del denoiser
    gc.collect()
    assert (fakes.cuda.host_memory, fakes.cuda.device_memory, fakes.cuda.streams) == ({}, {}, {})


def test_a_size_without_a_profile_is_told_with_the_fix(fakes: Fakes, unet_folder: Path) -> None:
    denoiser = tensorrt_denoiser(unet_folder)
    with pytest.raises(DeploymentError, match=r"no profile for latents 2x4x64x64.*4 profiles.*TARGET=tensorrt"):
        denoiser.rows((64, 64), 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "10.9.0.34"}, r"built by TensorRT 10.9.0.34.*limit: TensorRT 11.4.0.1 .* 9.0, .*TARGET=tensorrt"),
        ({"sm": 89}, r"compute capability 8.9.*compute capability 9.0.*TARGET=tensorrt"),
    ],
)
def test_an_engine_of_another_tensorrt_or_gpu_is_refused(
    fakes: Fakes, tmp_path: Path, denoiser_folder: Path, change: dict[str, Any], message: str
) -> None:
    write_plan(tmp_path / "denoiser.plan", denoiser_folder / "denoiser.onnx", [profile((8, 8), (8, 8))], **change)
    with pytest.raises(DeploymentError, match=message):
        tensorrt_denoiser(tmp_path)


def test_a_plan_that_does_not_load_is_told_in_tensorrts_own_words(
    fakes: Fakes, tmp_path: Path, denoiser_folder: Path
) -> None:
    write_plan(tmp_path / "denoiser.plan", denoiser_folder / "denoiser.onnx", []).write_bytes(b"no plan")
    with pytest.raises(DeploymentError, match=r"does not load: the plan is not one of this version.*TARGET=tensorrt"):
        tensorrt_denoiser(tmp_path)


def test_a_gpu_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, unet_folder: Path) -> None:
    fake_tensorrt.install(monkeypatch, devices=0)
    with pytest.raises(DeploymentError, match=r"no GPU 0 here \(cudaErrorNoDevice, 0 seen\)"):
        tensorrt_denoiser(unet_folder)


@pytest.mark.parametrize(
    ("missing", "message"), [("tensorrt", r"TensorRT, which is not installed"), ("cuda", r"`cuda-python` is not")]
)
def test_what_is_not_installed_is_told_with_the_fix(
    fakes: Fakes, monkeypatch: pytest.MonkeyPatch, unet_folder: Path, missing: str, message: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DeploymentError, match=message):
        tensorrt_denoiser(unet_folder)


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (Placement(runtime="onnxruntime", device=0), r"has no CUDA provider.*onnxruntime-gpu"),
        (Placement(runtime="torch", device=3), r"GPU 3; limit: torch .* sees 0"),
        (Placement(runtime="torch", precision="fp8"), r"precision = \"fp8\".*one of fp32, fp16, bf16"),
        (Placement(runtime="tensorrt"), r"runtime = \"tensorrt\" and no GPU"),
        (Placement(runtime="openvino"), r"runtime = \"openvino\".*one of onnxruntime, torch, tensorrt"),
    ],
)
def test_what_cannot_run_here_is_told_with_the_fix(unet_folder: Path, placement: Placement, message: str) -> None:
    with pytest.raises(DeploymentError, match=message):
        open_denoiser(unet_folder, manifest_of(), LIMITS, placement)


def test_a_provider_that_does_not_start_is_told(monkeypatch: pytest.MonkeyPatch, unet_folder: Path) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CUDAExecutionProvider"])
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"), pytest.raises(DeploymentError, match="not start"):
        OnnxDenoiser(unet_folder / "denoiser.onnx", manifest_of(), max_rows=2, threads=1, device=0)


def test_onnxruntime_on_a_gpu_computes_what_is_called_fp32_and_tries_no_kernels(
    monkeypatch: pytest.MonkeyPatch, unet_folder: Path
) -> None:
    opened: list[tuple[Any, Any]] = []

    class Session:
        def __init__(self, path: Path, options: Any, providers: Any) -> None:
            opened.append((options, dict(providers)))

        def get_providers(self) -> list[str]:
            return ["CUDAExecutionProvider"]

    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr("onnxruntime.InferenceSession", Session)
    open_session(unet_folder / "denoiser.onnx", 1, device=2)
    ((options, providers),) = opened
    cuda = providers["CUDAExecutionProvider"]
    assert (cuda["device_id"], cuda["use_tf32"], cuda["cudnn_conv_algo_search"]) == ("2", "0", "HEURISTIC")
    assert options.use_deterministic_compute


def test_torch_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch, unet_folder: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(DeploymentError, match=r"run on torch, which is not installed; fix: install torch"):
        open_denoiser(unet_folder, manifest_of(), LIMITS, Placement(runtime="torch"))


@pytest.mark.parametrize(("precision", "of_scale"), [("bf16", 0.05), ("fp16", 0.01)])
def test_torch_computes_products_in_a_lower_precision_and_gives_float32(
    unet_folder: Path, precision: str, of_scale: float
) -> None:
    denoiser = TorchDenoiser(
        unet_folder / "denoiser.pt2", manifest_of(), max_rows=MAX_ROWS, threads=1, precision=precision
    )
    work = Work.of(unet_folder, (8, 8))
    off = np.abs(work.predicted(denoiser, 0, 3) - work.expected[:3]).max() / np.abs(work.expected).max()
    assert 1e-5 < off < of_scale
    products = torch.backends.cuda.matmul
    assert not products.allow_tf32
    assert not products.allow_fp16_reduced_precision_reduction
    assert not products.allow_bf16_reduced_precision_reduction


def test_the_precision_of_the_deployment_file_is_that_of_a_gpu_alone() -> None:
    stage = {"runtime": "torch", "precision": "bf16"}
    facts = {"devices": [0], "pinned_memory_bytes": 0, "encodes_at_once": 1, "workspace_bytes": 1}
    gpu = Gpu.model_validate(
        facts | {"vision_encoder": stage, "connector": stage, "denoiser": stage, "llm": {"runtime": "onnxruntime"}}
    )
    assert Placement.of("torch", 1, gpu) == Placement(runtime="torch", device=1, precision="bf16")
    assert Placement.of("torch", None, gpu) == Placement(runtime="torch")
    assert Placement.of("onnxruntime", None, None) == ON_CPU
