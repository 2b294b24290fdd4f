"""A server whose encoders and denoiser run by torch, on the CPU, beside the one that runs them by ONNX Runtime."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from export.torch_program import export_programs
from export.world.draw import draw
from export.world.scene import scene
from proteus.client import Client
from proteus.launcher import Server

pytestmark = pytest.mark.slow  # programs of torch are traced, and read by a server of their own
ROOT = Path(__file__).parents[2]
GRAPHS = ("vision_encoder", "connector", "text_encoder", "vae_decoder")
DRAWING = ("text_encoder", "denoiser", "vae_decoder")
QUESTION = "Describe the picture."


@pytest.fixture(scope="module")
def torch_deployment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo, exported for torch, with configs that name it; one instance of each is enough here."""
    root = tmp_path_factory.mktemp("torch")
    shutil.copytree(ROOT / "model_repository", root / "model_repository", ignore=shutil.ignore_patterns("*.pt2"))
    (root / "checkpoints").symlink_to(ROOT / "checkpoints")
    (root / "deployments").mkdir()
    text = (ROOT / "deployments" / "demo.toml").read_text()
    (root / "deployments" / "demo.toml").write_text(text.replace("\nnice = 10", "\nnice = 0"))  # nobody to give way to
    programs = export_programs(root / "deployments" / "demo.toml")
    assert [program.model for program in programs] == ["vision_encoder", "connector", *DRAWING]
    assert all(program.path.is_file() and program.max_abs_diff <= 1e-4 * program.scale for program in programs)
    for model in GRAPHS:
        path = root / "model_repository" / model / "config.pbtxt"
        text = path.read_text().replace('backend: "onnxruntime"', 'backend: "proteus_torch"')
        text = text.replace('key: "nice" value: { string_value: "10" }', 'key: "nice" value: { string_value: "0" }')
        path.write_text(re.sub(r"instance_group \[ \{ count: \d+", "instance_group [ { count: 1", text))
    path = root / "model_repository" / "denoiser" / "config.pbtxt"
    path.write_text(path.read_text() + 'parameters { key: "runtime" value: { string_value: "torch" } }\n')
    return root / "deployments" / "demo.toml"


@pytest.fixture(scope="module")
def torch_server(torch_deployment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("torch_server") / "server.log"
    with Server(torch_deployment, log=log, ready_timeout_s=400.0) as running:  # five processes import torch
        yield running


def _png(seed: int) -> bytes:
    buffer = io.BytesIO()
    draw(scene("heldout", seed)).save(buffer, "PNG")
    return buffer.getvalue()


def test_answers_are_the_same_tokens(torch_server: Server, server: Server) -> None:
    with Client(torch_server.ports.grpc_url) as torch, Client(server.ports.grpc_url) as onnx:
        for pictures in ([_png(1)], [_png(2)], [_png(3), _png(4)]):
            one, other = (client.ask(QUESTION, pictures, max_tokens=32) for client in (torch, onnx))
            assert one.token_ids == other.token_ids
            assert one.usage == other.usage


@pytest.mark.parametrize("options", [{"guidance": 3.0, "n": 2}, {"guidance": 1.0, "size": "64x96", "sampler": "heun"}])
def test_pictures_are_within_one_of_eight_bits(
    torch_server: Server, server: Server, options: dict[str, object]
) -> None:
    drawn = []
    for at in (torch_server, server):
        with Client(at.ports.grpc_url) as client:
            drawing = client.draw("a red circle", seed=5, steps=6, format="png", **options)
            drawn.append([np.asarray(Image.open(io.BytesIO(picture.data)), np.int16) for picture in drawing.pictures])
    for one, other in zip(*drawn, strict=True):
        assert one.std() > 1
        assert np.abs(one - other).max() <= 1


def test_a_picture_of_torch_is_the_same_bits_alone_and_among_others(torch_server: Server) -> None:
    with Client(torch_server.ports.grpc_url) as client:
        alone = client.draw("a blue square", seed=7, steps=4).pictures[0].data
        among = client.draw("a blue square", seed=7, steps=4, n=3).pictures[0].data
    assert alone == among
