"""Input data for perf_analyzer: what the contract wants, in the sizes it names, nothing that a cache could answer."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perf.input_data import NUMPY, Load, tensors, write
from perf.input_reading import NUM_PICTURES
from perf.inputs import by_turns, chosen, loads_of, main
from perf.pictures import PHOTOGRAPHS
from proteus.configs import read_exports
from proteus.configs_models import draw_shapes
from proteus.contract import CHAT, MODELS, VISION_ENCODER, TensorSpec
from proteus.contract_draw import DRAW_MODELS
from proteus.deployment import Deployment

DEMO = Deployment.load(Path(__file__).parents[2] / "deployments" / "demo.toml")
LOADS = loads_of(DEMO)
SEPARATING = ("scope_key", "cache_key", "scheduling", "request")


def names_of(load: Load) -> str:
    return f"{load.model}-{load.bucket}"


def raw(tensor: Mapping[str, Any]) -> bytes:
    content = tensor["content"]
    return content[0].encode() if isinstance(content, list) else base64.b64decode(content["b64"])


def resolved(spec: TensorSpec, *, draws: bool) -> tuple[int, ...]:
    exports = read_exports(DEMO)
    assert exports.reads is not None and exports.draws is not None
    return draw_shapes(exports.draws).resolve(spec.dims) if draws else exports.reads.resolve(spec.dims)


def test_every_model_is_asked() -> None:
    assert {load.model for load in LOADS} == {spec.name for spec in (*MODELS, *DRAW_MODELS)}
    assert len({names_of(load) for load in LOADS}) == len(LOADS)


@pytest.mark.parametrize("load", LOADS, ids=names_of)
def test_tensors_are_those_of_the_contract(load: Load) -> None:
    specs = {spec.name: spec for spec in load.spec.inputs}
    for name, tensor in load.request(0).items():
        spec, shape = specs[name], tensor["shape"]
        wanted = resolved(spec, draws=load.spec.name in {one.name for one in DRAW_MODELS})
        assert len(shape) == len(wanted)
        assert all(dim in {-1, own} for dim, own in zip(wanted, shape, strict=True))
        if spec.dtype != "STRING":
            assert len(raw(tensor)) == math.prod(shape) * np.dtype(NUMPY[spec.dtype]).itemsize


@pytest.mark.parametrize("load", [load for load in LOADS if load.cached], ids=names_of)
def test_no_two_requests_share_what_a_cache_goes_by(load: Load) -> None:
    (again,) = (one for one in loads_of(DEMO) if names_of(one) == names_of(load))
    asked = [load.request(0), load.request(NUM_PICTURES), load.request(NUM_PICTURES * 4), again.request(0)]
    keys = [tuple(raw(request[name]) for name in SEPARATING if name in request) for request in asked]
    assert len(set(keys)) == len(asked)


def test_pictures_are_of_every_size_bucket_that_is_accepted() -> None:
    assert [kind.bucket for kind in PHOTOGRAPHS] == ["0.25 MP", "1 MP", "4 MP", "16 MP"]
    assert [load.bucket for load in LOADS if load.model == "image_tokens"] == [kind.bucket for kind in PHOTOGRAPHS]
    small = DEMO.model_copy(update={"image": DEMO.image.model_copy(update={"max_pixels": 1_000_000})})
    assert [load.bucket for load in loads_of(small) if load.model == "image_tokens"] == ["0.25 MP", "1 MP"]


def test_several_pictures_come_by_turns() -> None:
    (load,) = (one for one in LOADS if one.bucket == "1 to 4 pictures")
    requests = [load.request(number) for number in range(5)]
    assert [request["image_lengths"]["shape"] for request in requests] == [[1], [2], [3], [4], [1]]
    document = json.loads(requests[2]["request"]["content"][0])
    assert [part["type"] for part in document["messages"][0]["content"]] == ["image", "image", "image", "text"]


def test_file_is_what_perf_analyzer_reads(tmp_path: Path) -> None:
    own = [load for load in LOADS if load.model == "llm"]
    write(tmp_path / "llm.json", by_turns(own, 4))
    found = json.loads((tmp_path / "llm.json").read_text())["data"]
    assert [sorted(request) for request in found[:2]] == [sorted(load.request(0)) for load in own]
    assert found[2] == own[0].request(2)


def test_names_that_the_contract_has_not_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\['request'\] are missing, \['prompt'\] are unknown"):
        tensors(CHAT, {"prompt": "a"})


def test_a_file_where_the_folder_should_be_is_told_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").touch()
    monkeypatch.setattr("sys.argv", ["inputs", "--out", str(tmp_path / "taken")])
    assert main() == 1
    assert "taken" in capsys.readouterr().err


def test_unknown_model_is_told_with_those_there_are() -> None:
    assert {load.model for load in chosen(LOADS, [VISION_ENCODER.name])} == {"vision_encoder"}
    with pytest.raises(SystemExit, match="no model chatt in the deployment; there are chat, image_tokens"):
        chosen(LOADS, ["chatt"])
