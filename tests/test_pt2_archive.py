"""What is looked at in a torch program before torch reads it: what would be unpickled, evaluated or imported."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.onnx_graph import Graph, Port
from export.torch_program import save_program
from proteus.deployment import DeploymentError
from proteus.pt2_archive import Ports, check_archive
from proteus.torch_session import TorchProgram

Records = dict[str, bytes]
GRAPH, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"


class _Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(rows).reshape(2 * rows.shape[0], 2)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("program") / "model.pt2"
    graph = Graph(
        name="halves",
        path=Path("halves.onnx"),
        module=_Halves().eval(),
        example=(torch.zeros(3, 3),),
        inputs=(Port(name="rows", dims=("batch", 3)),),
        outputs=(Port(name="halves", dims=("many", 2)),),
    )
    save_program(graph, path)
    return path


def rewritten(program: Path, folder: Path, change: Callable[[Records], None]) -> Path:
    """The same archive with other records."""
    with zipfile.ZipFile(program) as archive:
        records = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    change(records)
    with zipfile.ZipFile(folder / "model.pt2", "w") as archive:
        for name, content in records.items():
            archive.writestr(f"model/{name}", content)
    return folder / "model.pt2"


def put(record: str, content: bytes) -> Callable[[Records], None]:
    return lambda records: records.__setitem__(record, content)


def change(record: str, edit: Callable[[Any], object]) -> Callable[[Records], None]:
    def changed(records: Records) -> None:
        document = json.loads(records[record])
        edit(document)
        records[record] = json.dumps(document).encode()

    return changed


def replace(record: str, old: bytes, new: bytes) -> Callable[[Records], None]:
    def changed(records: Records) -> None:
        assert old in records[record]
        records[record] = records[record].replace(old, new)

    return changed


def test_what_export_writes_passes_and_runs_for_any_batch(program: Path) -> None:
    assert check_archive(program) == Ports(inputs=("rows",), outputs=("halves",))
    opened = TorchProgram(program, threads=1)
    assert [opened.run([torch.zeros(batch, 3).numpy()])[0].shape for batch in (1, 2, 70)] == [(2, 2), (4, 2), (140, 2)]


def test_an_archive_tells_nothing_of_the_machine_that_made_it(program: Path) -> None:
    with zipfile.ZipFile(program) as archive:
        assert all(str(Path(__file__).parents[1]).encode() not in archive.read(name) for name in archive.namelist())


def first_node(document: Any) -> Any:
    return document["graph_module"]["graph"]["nodes"][0]


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (put("data/sample_inputs/model.pt", pickle.dumps(1)), "pickled sample inputs"),
        (put("data/weights/model.pt", pickle.dumps(1)), "a record 'data/weights/model.pt'"),
        (put("data/constants/custom_obj_0", b"x"), "a record 'data/constants/custom_obj_0'"),
        (put("data/constants/opaque_obj_0", b"x"), "a record 'data/constants/opaque_obj_0'"),
        (put("data/aotinductor/model/model.so", b"x"), "a record 'data/aotinductor/model/model.so'"),
        (put("models/other.json", b"{}"), "a record 'models/other.json'"),
        (change(WEIGHTS, lambda table: next(iter(table["config"].values())).update(use_pickle=True)), "pickled tensor"),
        (change(GRAPH, lambda graph: graph.update(guards_code=["print(1)"])), "guards_code"),
        (change(GRAPH, lambda graph: first_node(graph).update(target="torch.hub.load")), "a target"),
        (change(GRAPH, lambda graph: first_node(graph).update(target="torch.os.system")), "a target"),
        (change(GRAPH, lambda graph: first_node(graph).update(target="torch.ops.aten.from_file.default")), "a target"),
        (change(GRAPH, lambda graph: first_node(graph).update(name="x); import os")), "a name"),
        (change(GRAPH, lambda graph: first_node(graph)["inputs"].append({"name": "a=print()"})), "a name"),
        (change(GRAPH, lambda graph: graph.update({"a b": 1})), "a name that is no name"),
        (replace(GRAPH, b"Symbol('", b"__import__('os').system('"), "a expr_str"),
        (replace(GRAPH, b"builtins.dict", b"collections.defaultdict"), "a container"),
        (
            replace(GRAPH, b'\\"context\\": \\"null\\"', b'\\"context\\": \\"{\\\\\\"__enum__\\\\\\": 1}\\"'),
            "a container",
        ),
    ],
)
def test_what_torch_would_run_is_refused(
    program: Path, tmp_path: Path, edit: Callable[[Records], None], what: str
) -> None:
    path = rewritten(program, tmp_path, edit)
    with pytest.raises(DeploymentError, match=what) as refused:
        TorchProgram(path, threads=1)
    assert "make export CHECKPOINT=folder TARGET=torch" in str(refused.value)


@pytest.mark.parametrize("content", [None, b"", b"no archive", b"PK\x05\x06" + bytes(18)])
def test_what_is_no_program_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "model.pt2"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DeploymentError, match=r"model\.pt2 (cannot be loaded|holds)"):
        TorchProgram(path, threads=1)


@pytest.mark.parametrize("record", [GRAPH, WEIGHTS, "extra/ports.json"])
@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"null", b"\xff"])
def test_damaged_documents_are_refused(program: Path, tmp_path: Path, record: str, content: bytes) -> None:
    with pytest.raises(DeploymentError, match=r"model\.pt2 (cannot be loaded|holds)"):
        TorchProgram(rewritten(program, tmp_path, put(record, content)), threads=1)
