"""`make export … TARGET=tensorrt` on a real GPU: built, run there, compared, kept, served, and built once."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from export.__main__ import main
from export.engines_host import tensorrt_here
from proteus.cuda_driver import compute_capability
from proteus.deployment import Deployment
from proteus.engines import Engine, check_installed, plan_path, timing_cache_path
from proteus.profiles import other_profiles

STAGES = ("vision_encoder", "connector")
PRECISIONS = ("fp32", "fp16", "bf16") if find_spec("tensorrt") is not None else ()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_engines_of_a_checkpoint_are_right_on_this_gpu(
    tiny_export: Path, tiny_checkpoint: Path, tmp_path: Path, precision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tiny"
    shutil.copytree(tiny_export, out)
    file = out / "deployment.toml"
    file.write_text(file.read_text().replace('precision = "fp16"', f'precision = "{precision}"'))
    words = [str(tiny_checkpoint), "--out", str(out), "--target", "tensorrt", "--json"]
    assert main(words) == 0
    made = json.loads(capsys.readouterr().out)["engines"]
    assert [(engine["stage"], engine["precision"], engine["built"]) for engine in made] == [
        (stage, precision, True) for stage in STAGES
    ]
    deployment = Deployment.load(file)
    version, sm = tensorrt_here().__version__, compute_capability() or 0
    assert check_installed(deployment, version, sm) == []
    assert other_profiles(deployment) == []
    assert timing_cache_path(deployment, version, sm).stat().st_size > 0
    for stage in STAGES:
        engine = Engine.load(plan_path(deployment.repository_path, stage).with_name("engine.json"))
        assert all(output["non_finite"] == 0 for output in engine.report["engine"]["outputs"])
        assert engine.report["engine"]["profiles"] == ["fixed"]
    assert main(words) == 0
    assert [engine["built"] for engine in json.loads(capsys.readouterr().out)["engines"]] == [False, False]
