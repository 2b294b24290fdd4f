"""The shape of the code: which room may import which, sizes, names, and that serving needs no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "proteus"
# A room imports from its own row or from rows above it. docs/architecture.md tells what each one is for.
ROWS = (
    {"errors", "clock", "closing", "cuda_driver", "lookup"},
    {"limits", "limits_cache", "limits_gateway", "limits_gpu", "limits_page", "limits_published"},
    {"contract", "contract_draw", "contract_page", "stages", "deployment"},
    {"manifest", "engines", "onnx_session", "pt2_archive", "torch_session", "cuda_device", "tensorrt_session"},
    {"media"},
    {"families"},
    {"cost"},
    {"admission"},
    {"cache"},
    {"preprocess"},
    {"language"},
    {"generation"},
    {"configs", "configs_gpu", "configs_models", "estimate", "pbtxt", "profiles"},
    {"backend"},
    {"door"},
    {"estimate_draw", "estimate_size"},
    {"client"},
    {"gateway"},
    {"launcher"},
    {"cli"},
)
ROW_OF = {room: row for row, rooms in enumerate(ROWS) for room in rooms}
# These could be packages of their own: what else of ours they may use.
STANDS_ALONE = {
    "client": {"errors", "clock"},
    "launcher": {"errors", "cuda_driver", "deployment", "limits_gpu", "engines", "profiles"},
}
TRITON = "triton_python_backend_utils"
HEAVY = ("torch", "transformers", "diffusers", "onnx", "onnxscript", "safetensors")
CODE = ("src", "export", "client", "perf", "tests", "model_repository")
MAX_FILE_LINES, MAX_MODEL_LINES, MAX_FUNCTION_LINES = 400, 80, 60
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}


def python_files(*folders: str) -> list[Path]:
    return [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def room_of(name: str) -> str | None:
    """The room of a full name: `proteus.cache.key.CacheKey` -> `cache`; None for names that are not of a room."""
    top, _, rest = name.partition(".")
    room = rest.partition(".")[0]
    return room if top == "proteus" and room in ROW_OF else None


def uphill_imports(file: Path, room: str) -> list[str]:
    bad = []
    for line, name in imports(file):
        other = room_of(name)
        alone = STANDS_ALONE.get(room)
        if other is None or other == room:
            continue
        if ROW_OF[other] >= ROW_OF[room] and other not in ROWS[ROW_OF[room]]:
            bad.append(f"{file.name}:{line} {room} imports {other}, which comes later")
        elif alone is not None and other not in alone:
            bad.append(f"{file.name}:{line} {room} stands alone and imports {other}")
    return bad


def room_of_file(file: Path) -> str:
    if file.is_relative_to(PACKAGE / "launcher" / "backends"):
        return "backend"  # run by Triton's stubs; the launcher only lays them out
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_room_has_a_row() -> None:
    rooms = {room_of_file(file) for file in python_files("src")} - {"__init__"}
    assert rooms == set(ROW_OF)


@pytest.mark.parametrize("room", sorted(ROW_OF))
def test_rooms_import_only_what_comes_before_them(room: str) -> None:
    files = [file for file in python_files("src") if room_of_file(file) == room]
    assert [bad for file in files for bad in uphill_imports(file, room)] == []


def test_uphill_import_is_found(tmp_path: Path) -> None:
    file = tmp_path / "key.py"
    file.write_text("import proteus.door.chat\n\n\ndef late():\n    from proteus.language import engine\n")
    assert uphill_imports(file, "cache") == [
        "key.py:1 cache imports door, which comes later",
        "key.py:5 cache imports language, which comes later",
    ]


def test_only_the_backend_room_knows_triton() -> None:
    knowing = {file for file in python_files("src") for _, name in imports(file) if name.split(".")[0] == TRITON}
    assert {file for file in knowing if room_of_file(file) != "backend"} == set()


# What runs a graph by torch, where a deployment asks for it: imported in a function, when the graph is opened.
RUNS_TORCH = {PACKAGE / "torch_session.py"}
# Needs TensorRT-LLM, which brings torch; imported when an engine of it is opened, and by its workers.
NEEDS_TENSORRT_LLM = {PACKAGE / "language" / "tensorrt_llm_model.py"}


def test_serving_code_never_imports_torch() -> None:
    # Other engines, each in an environment of its own; what makes graphs as export does; what compares with torch.
    names = ("peers", "graphs.py", "graph_variants.py", "kv_memory.py", "sampling.py")
    drawing = ("draw_checkpoint.py", "draw_loops.py", "draw_studio.py")
    apart = [ROOT / "perf" / name for name in (*names, *drawing)]
    for file in python_files("src", "model_repository", "client", "perf"):
        if file in RUNS_TORCH | NEEDS_TENSORRT_LLM or any(file.is_relative_to(path) for path in apart):
            continue
        heavy = [f"{file.name}:{line} {name}" for line, name in imports(file) if name.split(".")[0] in HEAVY]
        assert heavy == []


def test_no_library_brings_torch_into_serving() -> None:
    modules = [
        ".".join(file.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for file in python_files("src")
        if room_of_file(file) != "backend" and file not in NEEDS_TENSORRT_LLM
    ]
    program = f"import importlib, sys\nfor name in {modules}: importlib.import_module(name)\n"
    program += f"print(sorted(set({HEAVY}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT / "src")
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_files_and_functions_stay_small() -> None:
    too_long = []
    for file in python_files(*CODE):
        text = file.read_text()
        cap = MAX_MODEL_LINES if file.name == "model.py" else MAX_FILE_LINES
        if (lines := text.count("\n")) > cap:
            too_long.append(f"{file.relative_to(ROOT)} has {lines} lines, over {cap}")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "tests" not in file.parts:
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    too_long.append(f"{file.relative_to(ROOT)}:{node.lineno} {node.name} has {length} lines")
    assert too_long == []


def test_no_file_has_a_vague_name() -> None:
    assert [file for file in python_files(*CODE) if file.stem in VAGUE] == []
