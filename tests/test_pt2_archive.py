"""What is looked at in a torch program before torch reads it: what would be unpickled, evaluated or imported."""

from __future__ import annotations

import io
import json
import pickle
import struct
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
        (
            change(GRAPH, lambda graph: first_node(graph).update(target="torch.ops.aten.save.default")),
            "a target .*aten.save",
        ),
        (change(GRAPH, lambda graph: first_node(graph).update(target="torch.ops.aten._print.default")), "a target"),
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


def directory(archive: bytes) -> tuple[int, int, int]:
    """Where the directory of an archive begins and ends, and its number of records."""
    end = archive.rindex(b"PK\5\6")
    num_records, num_bytes, start = struct.unpack_from("<HLL", archive, end + 10)
    return start, start + num_bytes, num_records


def zipped(records: Records) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return file.getvalue()


def moved(entries: bytes, by: int) -> bytes:
    """A directory whose records lie elsewhere."""
    changed, at = bytearray(entries), 0
    while at < len(changed):
        lengths = struct.unpack_from("<3H", changed, at + 28)
        struct.pack_into("<L", changed, at + 42, (struct.unpack_from("<L", changed, at + 42)[0] + by) % 2**32)
        at += 46 + sum(lengths)
    return bytes(changed)


def longer(entries: bytes, by: int) -> bytes:
    """A directory whose last record has a comment."""
    last = entries.rindex(b"PK\1\2")
    record = bytearray(entries[last:])
    struct.pack_into("<H", record, 32, by)
    return entries[:last] + bytes(record) + by * b" "


def test_an_archive_that_torch_reads_as_another_than_python_does_is_refused(program: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(program) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    good, bad = zipped(records), zipped({**records, "model/data/weights/evil": b"x"})
    (start, stop, _), (bad_start, bad_stop, num_records) = directory(good), directory(bad)
    # Python goes by the end of the file, and takes the distance from what is written there for a prefix of the archive.
    seen = longer(good[start:stop], bad_stop - bad_start - (stop - start))
    seen = moved(seen, bad_stop - (bad_stop + start - bad_start))
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, num_records, num_records, len(seen), bad_start, 0)
    path = tmp_path / "model.pt2"
    path.write_bytes(bad[:bad_stop] + good[:start] + seen + end)
    with zipfile.ZipFile(path) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == records
    assert "data/weights/evil" in torch._C.PyTorchFileReader(str(path)).get_all_records()
    with pytest.raises(DeploymentError, match="two readers"):
        check_archive(path)


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(lambda content: b"x" + content, id="bytes before it"),
        pytest.param(lambda content: content[:-2] + b"\1\0x", id="a comment"),
        pytest.param(lambda content: content.replace(b"PK\6\6", b"PK\6\5"), id="no wide end"),
        pytest.param(lambda content: content.replace(b"model/byteorder", b"model/byteo\0der"), id="a name cut short"),
        pytest.param(lambda content: content[:-6] + b"\0\0\0\0" + content[-2:], id="another narrow offset"),
    ],
)
def test_an_archive_of_another_layout_than_torch_writes_is_refused(
    program: Path, tmp_path: Path, edit: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(edit(program.read_bytes()))
    with pytest.raises(DeploymentError, match="two readers|cannot be loaded"):
        check_archive(path)


def test_records_that_are_packed_are_refused(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(program) as archive, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in archive.namelist():
            packed.writestr(name, archive.read(name))
    with pytest.raises(DeploymentError, match="two readers"):
        check_archive(path)
