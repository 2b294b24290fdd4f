"""A picture for the `image_tokens` of another Triton, and its answer, as messages of Triton's gRPC service.

The other server's marks are of its own clock: what is read here is in ours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from proteus.backend.fleet import Context, EncodedPicture
from proteus.contract import IMAGE_TOKENS
from proteus.errors import InternalError
from proteus.stages import EncodeMarks, Span

DTYPES: Mapping[str, Any] = {"UINT8": np.uint8, "INT32": np.int32, "INT64": np.int64, "FP32": np.float32}
OUTPUTS = {spec.name: spec.dtype for spec in IMAGE_TOKENS.outputs}
# What of a configuration decides no visual token: who waits how long, and how many run at once.
BESIDE = ("dynamic_batching", "instance_group", "model_warmup", "metric_tags", "model_metrics", "version_policy")

Array = npt.NDArray[Any]


def infer_request(
    picture: bytes, scope_key: bytes, target_px: tuple[int, int] | None, context: Context, timeout_us: int
) -> Any:
    """`timeout_us` is what the other server may let it wait in its queues."""
    request = service_pb2.ModelInferRequest(model_name=IMAGE_TOKENS.name, id=context.request_id)
    for name, value in context.parameters.items():
        kind = "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "string"
        setattr(request.parameters[name], f"{kind}_param", value)
    request.parameters["timeout"].int64_param = timeout_us
    target = np.array(target_px or (0, 0), dtype="<i4").tobytes()
    given = {"image_bytes": picture, "scope_key": scope_key, "target_px": target}
    for spec in IMAGE_TOKENS.inputs:
        data = given[spec.name]
        size = len(data) // np.dtype(DTYPES[spec.dtype]).itemsize
        request.inputs.add(name=spec.name, datatype=spec.dtype, shape=[1, size])
        request.raw_input_contents.append(data)
    for name in OUTPUTS:
        request.outputs.add(name=name)
    return request


def read_picture(response: Any, sent_ns: int, received_ns: int, encoder: str) -> EncodedPicture:
    """What came between the two moments of our clock; raises InternalError when it is not what the contract says."""
    outputs = _outputs(response)
    rows = outputs["visual_tokens"]
    if rows.ndim != 3 or len(rows) != 1:
        raise InternalError
    marks = EncodeMarks(
        preprocess=_span(outputs["preprocess_ns"]),
        encoder=_span(outputs["encoder_ns"]),
        connector=_span(outputs["connector_ns"]),
    )
    return EncodedPicture(
        visual_tokens=rows[0],
        marks=in_our_time(marks, sent_ns, received_ns),
        preprocess_saved_us=int(_numbers(outputs["preprocess_saved_us"], 1)[0]),
        encoder=encoder,
    )


def in_our_time(marks: EncodeMarks, sent_ns: int, received_ns: int) -> EncodeMarks:
    """Marks that lie between the two moments are of our clock, for a machine has one. Others keep their lengths and
    are put in the middle: half of what is left was the way there, half the way back. What an encoder without a clock
    took is left as well: then all of it is after the marks, where it is told as `encode`.
    """
    spans = (marks.preprocess, marks.encoder, marks.connector)
    known = [mark for span in spans if span[1] for mark in span]
    if not known or sent_ns <= min(known) <= max(known) <= received_ns:
        return marks
    away_ns = max(0, received_ns - sent_ns - (max(known) - min(known)))
    before_ns = away_ns // 2 if marks.encoder[1] else 0
    later_ns = sent_ns + before_ns - min(known)
    preprocess, encoder, connector = ((span[0] + later_ns, span[1] + later_ns) if span[1] else span for span in spans)
    return EncodeMarks(preprocess=preprocess, encoder=encoder, connector=connector)


def digest(version: str, configs: Sequence[Any]) -> str:
    """Names what runs the encoder on a Triton of that version, by the configurations of its models; hex."""
    named = hashlib.sha256(version.encode())
    for config in configs:
        deciding = type(config)()
        deciding.CopyFrom(config)
        for field in BESIDE:
            deciding.ClearField(field)
        kinds = sorted({group.kind for group in config.instance_group})
        named.update(f"\n{kinds}\n".encode())
        named.update(deciding.SerializeToString(deterministic=True))
    return named.hexdigest()


def _outputs(response: Any) -> dict[str, Array]:
    """By name, every one of the contract's; raises InternalError."""
    described, contents = response.outputs, response.raw_output_contents
    found: dict[str, Array] = {}
    for output, data in zip(described, contents, strict=False):
        dtype = np.dtype(DTYPES[OUTPUTS[output.name]]) if output.name in OUTPUTS else None
        if dtype is None or len(data) != dtype.itemsize * int(np.prod(output.shape)):
            raise InternalError
        found[output.name] = np.frombuffer(data, dtype=dtype).reshape(output.shape)
    if found.keys() != OUTPUTS.keys():
        raise InternalError
    return found


def _span(array: Array) -> Span:
    begun_ns, done_ns = _numbers(array, 2)
    return begun_ns, done_ns


def _numbers(array: Array, count: int) -> list[int]:
    if array.size != count:
        raise InternalError
    return [int(number) for number in array.reshape(-1)]
