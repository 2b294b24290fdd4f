"""What may lie in a torch program (`.pt2`), looked at before torch reads it.

torch's own loader unpickles what an archive asks it to, evaluates its symbolic sizes and guards as Python, imports and
compiles. Of all that an archive can hold, only plain weights and a graph of known ATen operators pass.
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from proteus.deployment import DeploymentError

PORTS = "ports.json"  # ours: names of inputs and outputs, in order
_GRAPH, _SAMPLES = "models/model.json", "data/sample_inputs/model.pt"
_TABLES = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_RECORDS = re.compile(
    r"models/model\.json|data/sample_inputs/model\.pt|extra/ports\.json|archive_format|archive_version|byteorder"
    r"|\.data/(version|serialization_id)|data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)"
)
# The ends of a zip file: its own, and for more than 4 GB the other one and where that is.
_END, _END64, _LOCATOR = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
_LOCATOR_MARK, _END64_MARK = b"PK\6\7", b"PK\6\6"
_SHOWN = 80  # of a word, in a message
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
# All that models of pictures and texts are made of. ATen has others that write files (`save`), map them or print.
_ATEN = (
    "abs|adaptive_avg_pool2d|add|add_|addmm|alias|all|amax|amin|any|arange|argmax|avg_pool2d|baddbmm"
    "|batch_norm|bitwise_and|bitwise_not|bitwise_or|bmm|cat|ceil|chunk|clamp|clamp_max|clamp_min|clone"
    "|constant_pad_nd|contiguous|conv1d|conv2d|conv3d|conv_transpose2d|convolution|cos|cumsum|detach|detach_"
    "|div|div_|dropout|einsum|embedding|empty|eq|erf|exp|expand|expand_as|flatten|flip|floor|floor_divide|full"
    "|full_like|gather|ge|gelu|group_norm|gt|hardtanh|index|index_select|instance_norm|layer_norm|le"
    "|leaky_relu|lift_fresh_copy|linear|linspace|log|logical_and|logical_not|logical_or|lt|masked_fill|matmul"
    "|max|max_pool2d|mean|min|mm|movedim|mul|mul_|narrow|ne|neg|new_full|new_ones|new_zeros|ones|ones_like"
    "|outer|pad|permute|pixel_shuffle|pixel_unshuffle|pow|prod|reciprocal|relu|relu_|remainder|repeat"
    "|repeat_interleave|reshape|rms_norm|roll|round|rsqrt|rsub|scalar_tensor|scaled_dot_product_attention"
    "|select|sigmoid|sigmoid_|silu|silu_|sin|slice|softmax|softplus|split|split_with_sizes|sqrt|square|squeeze"
    "|stack|sub|sub_|sum|sym_numel|sym_size|t|tanh|tensor_split|tile|to|_to_copy|topk|transpose|tril|triu"
    "|type_as|unbind|unflatten|unfold|_unsafe_view|unsqueeze|upsample_bicubic2d|upsample_bilinear2d"
    "|upsample_nearest2d|var|var_mean|view|view_as|where|zeros|zeros_like"
)
_OPERATOR = re.compile(
    rf"torch\.ops\.aten\.({_ATEN})\.\w+|_operator\.(add|sub|mul|floordiv|mod|neg|getitem|eq|ne|lt|le|gt|ge)"
    r"|torch\.sym_(int|float|max|min|not)|math\.(ceil|floor|trunc)"
)
# As sympy.srepr writes it, without what could be called for anything but a size.
_SIZE = re.compile(
    r"(Symbol\('[a-z]+\d+'(, (positive|integer|nonnegative)=True)*\)|Integer\(-?\d+\)|-?\d+|true|false|, |\)"
    r"|(Add|Mul|Pow|Max|Min|Mod|PythonMod|FloorDiv|CleanDiv|CeilDiv|Eq|Equality|Ne|Unequality|GreaterThan|LessThan"
    r"|StrictGreaterThan|StrictLessThan|And|Or|Not|IntTrueDiv|ToFloat|FloorToInt|CeilToInt|TruncToInt|Rational)\()+"
)
_TEXT = re.compile(r"[\w.,+>* -]*")  # an operator's own argument: `tanh`, `nhwpqc->nchpwq`
_WORD = re.compile(r"[\w.+-]*")
_FORMS = {"target": _OPERATOR, "expr_str": _SIZE, "as_string": _TEXT}
_TREE_TYPES = {None, "builtins.tuple", "builtins.list", "builtins.dict"}
_TREE_CONTEXTS = {None, "null", "[]"}
_FORBIDDEN = {"as_custom_obj", "as_graph", "as_operator", "guards_code", "custom_obj_values"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Names, in the order of the graph."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def check_archive(path: Path) -> Ports:
    """Raises DeploymentError where `path` is no archive, or holds more than tensors and a graph of ATen operators."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            if not _has_one_reading(file, archive):
                reason: str | None = "what two readers of zip files may read as two archives"
            elif (reason := next(_wrong(archive), None)) is None:
                return _ports(archive)
    except (*_DAMAGED, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DeploymentError(f"{path} cannot be loaded", fix=_FIX) from error
    raise DeploymentError(
        f"{path} holds {reason}", limit="plain tensors and a graph of ATen operators, unpickled by nobody", fix=_FIX
    )


_DAMAGED = (zipfile.BadZipFile, struct.error, NotImplementedError, RuntimeError, zlib.error, EOFError)


def _has_one_reading(file: IO[bytes], archive: zipfile.ZipFile) -> bool:
    """Python finds the directory by where the file ends, torch's reader by the offset that is written there.

    Only the layout that torch writes has no room for a second directory, nor for a record that one of them sees.
    """
    end = stops = file.seek(0, 2) - _END.size
    *_, num_records, num_bytes, start, comment = _read(file, end, _END)
    mark, _, at, _ = _read(file, end - _LOCATOR.size, _LOCATOR)
    if mark == _LOCATOR_MARK:
        stops = end - _LOCATOR.size - _END64.size
        mark, *_, wide_records, wide_bytes, wide_start = _read(file, stops, _END64)
        agree = num_records in (wide_records, _FULL16) and num_bytes in (wide_bytes, _FULL32)
        if mark != _END64_MARK or at != stops or not agree or start not in (wide_start, _FULL32):
            return False
        num_records, num_bytes, start = wide_records, wide_bytes, wide_start
    is_in_place = (comment, start, start + num_bytes) == (0, archive.start_dir, stops)
    return is_in_place and num_records == len(archive.infolist()) and all(map(_is_plain, archive.infolist()))


def _read(file: IO[bytes], at: int, fields: struct.Struct) -> tuple[Any, ...]:
    file.seek(at)
    return fields.unpack(file.read(fields.size))


def _is_plain(record: zipfile.ZipInfo) -> bool:
    """Stored as it is, its name too; only an offset that is too large for its field stands outside of it."""
    is_stored = record.compress_type == zipfile.ZIP_STORED and record.compress_size == record.file_size
    is_named = record.filename == record.orig_filename and record.filename.isascii()
    return is_stored and is_named and (not record.extra or record.extra[:2] == b"\1\0" and _is_one_field(record.extra))


def _is_one_field(extra: bytes) -> bool:
    return len(extra) == 4 + int.from_bytes(extra[2:4], "little")


def _ports(archive: zipfile.ZipFile) -> Ports:
    (record,) = (name for name in archive.namelist() if name.endswith(f"/extra/{PORTS}"))
    ports = json.loads(archive.read(record))
    return Ports(inputs=tuple(ports["inputs"]), outputs=tuple(ports["outputs"]))


_FIX = "export it again: make export CHECKPOINT=folder TARGET=torch"


def _wrong(archive: zipfile.ZipFile) -> Iterator[str]:
    names = archive.namelist()
    roots = {name.partition("/")[0] for name in names}
    records = {name.partition("/")[2]: name for name in names}
    if len(roots) != 1 or len(records) != len(names):
        yield "several archives in one"
    yield from (f"a record {record!r}" for record in records if not _RECORDS.fullmatch(record))
    if {_GRAPH, _SAMPLES, f"extra/{PORTS}", *_TABLES} - set(records):
        yield "no program"
    if archive.getinfo(records[_SAMPLES]).file_size:
        yield "pickled sample inputs"
    for table in _TABLES:
        for payload in json.loads(archive.read(records[table]))["config"].values():
            if payload["use_pickle"] is not False:
                yield "a pickled tensor"
    for record in (_GRAPH, f"extra/{PORTS}", *_TABLES):
        yield from _wrong_words(None, json.loads(archive.read(records[record])))


def _wrong_words(key: str | None, value: Any) -> Iterator[str]:
    """Every word of a document has the form that its key allows; `key` is that of the nearest object around it."""
    if key in _FORBIDDEN and value:
        yield f"{key} in its graph"
    elif isinstance(value, dict):
        for name, part in value.items():
            if not _WORD.fullmatch(name):
                yield "a name that is no name"
            yield from _wrong_words(name, part)
    elif isinstance(value, list):
        for part in value:
            yield from _wrong_words(key, part)
    elif isinstance(value, str):
        if key in ("in_spec", "out_spec"):
            yield from _wrong_tree(json.loads(value))
        elif not _FORMS.get(key or "", _WORD).fullmatch(value):
            yield f"a {key} that is not allowed, {value[:_SHOWN]!r}"


def _wrong_tree(spec: Any) -> Iterator[str]:
    version, root = spec
    nodes = [root]
    if version != 1:
        yield "a tree of another version"
    while nodes:
        node = nodes.pop()
        if node["type"] not in _TREE_TYPES or node["context"] not in _TREE_CONTEXTS:
            yield "a container that is no tuple, list or dict"
        nodes += node["children_spec"]
