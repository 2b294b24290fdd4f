"""The denoiser's runtimes on a real GPU, those that are installed, under the contract that they keep on the CPU.

Bits may follow the number of rows there; the same call gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch

from export.engines_host import tensorrt_here
from export.tensorrt_plan import Settings, build_plan
from proteus.cuda_driver import compute_capability
from proteus.generation.denoisers import Denoiser, Placement, open_denoiser
from proteus.manifest import DrawManifest
from proteus.profiles import Profile
from tests.fake_tensorrt import write_engine
from tests.generation.denoiser_contract import MAX_ROWS, SIZES, DenoiserContract, Make, Work
from tests.generation.denoisers import CHANNELS, POOLED, TOKENS, WIDTH, add_unet_program, export_sum, export_unet
from tests.generation.painters import engine_limits

IS_HERE = {
    "torch": torch.cuda.is_available(),
    "onnxruntime": "CUDAExecutionProvider" in onnxruntime.get_available_providers(),
    "tensorrt": find_spec("tensorrt") is not None and find_spec("cuda") is not None,
}
RUNTIMES = [runtime for runtime, is_here in IS_HERE.items() if is_here]
LIMITS = engine_limits(max_rows=MAX_ROWS)
WORKSPACE_BYTES = 1 << 30


def build(folder: Path, sizes: tuple[tuple[int, int], ...], **more: tuple[int, ...]) -> None:
    """denoiser.plan and engine.json, of the ONNX file that lies there."""
    trt = tensorrt_here()
    texts = {"timestep": (), "text_states": (TOKENS, WIDTH), **more}
    rows = (1, 2, MAX_ROWS)
    profiles = []
    for size in sizes:
        shapes: dict[str, Any] = {"latents": tuple((count, CHANNELS, *size) for count in rows)}
        shapes |= {name: tuple((count, *shape) for count in rows) for name, shape in texts.items()}
        profiles.append(Profile(name=f"{size[0]}x{size[1]}", shapes=shapes))
    settings = Settings(optimization_level=3, workspace_bytes=WORKSPACE_BYTES, tf32=False)
    plan = build_plan(trt, folder / "denoiser.onnx", "denoiser", profiles, settings)
    (folder / "denoiser.plan").write_bytes(plan.content)
    write_engine(folder / "denoiser.plan", version=trt.__version__, sm=compute_capability() or 0)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Every runtime's files of the UNet, and of the sum."""
    unet = add_unet_program(export_unet(tmp_path_factory.mktemp("unet")))
    total = export_sum(tmp_path_factory.mktemp("sum"))
    if "tensorrt" in RUNTIMES:
        build(unet, SIZES)
        build(total, ((4, 6),), pooled=(POOLED,), guidance=())
    return unet, total


def opener(runtime: str, **placed: Any) -> Callable[[Path, DrawManifest], Denoiser]:
    return lambda folder, manifest: open_denoiser(
        folder, manifest, LIMITS, Placement(runtime=runtime, device=0, **placed)
    )


@pytest.fixture(params=RUNTIMES)
def make(request: pytest.FixtureRequest, folders: tuple[Path, Path]) -> Make:
    unet, total = folders
    return Make(open=opener(request.param), unet=unet, sum=total, keeps_bits=False)


class TestContract(DenoiserContract):
    pass


@pytest.mark.parametrize(("precision", "of_scale"), [("fp16", 0.01), ("bf16", 0.05)])
def test_torch_on_a_gpu_computes_in_a_lower_precision(
    folders: tuple[Path, Path], precision: str, of_scale: float
) -> None:
    make = Make(open=opener("torch", precision=precision), unet=folders[0], sum=folders[1])
    work = Work.of(make.unet, SIZES[0])
    off = abs(work.predicted(make.of_unet(), 0, 3) - work.expected[:3]).max() / abs(work.expected).max()
    assert off < of_scale
