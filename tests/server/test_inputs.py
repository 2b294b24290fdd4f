"""Every file that is made for perf_analyzer holds requests that its model answers."""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from perf.input_data import Load
from perf.inputs import loads_of
from proteus.deployment import Deployment
from proteus.launcher import Server
from tests.server.wire import DEADLINE_S

LOADS = loads_of(Deployment.load(Path(__file__).parents[2] / "deployments" / "demo.toml"))


def message(load: Load) -> Any:
    """As perf_analyzer makes it of an entry: a batched model gets one row."""
    request = service_pb2.ModelInferRequest(model_name=load.model)
    dtypes = {spec.name: "BYTES" if spec.dtype == "STRING" else spec.dtype for spec in load.spec.inputs}
    for name, tensor in load.request(0).items():
        content = tensor["content"]
        raw = base64.b64decode(content["b64"]) if isinstance(content, dict) else content[0].encode()
        if dtypes[name] == "BYTES":
            raw = struct.pack("<I", len(raw)) + raw
        shape = [1, *tensor["shape"]] if load.spec.batched else tensor["shape"]
        request.inputs.add(name=name, datatype=dtypes[name], shape=shape)
        request.raw_input_contents.append(raw)
    return request


def answers(stub: Any, load: Load) -> list[Any]:
    """All responses. As perf_analyzer asks, a stream is for decoupled models only; fails where one is refused."""
    if not load.spec.decoupled:
        return [stub.ModelInfer(message(load), timeout=DEADLINE_S)]
    found = list(stub.ModelStreamInfer(iter([message(load)]), timeout=DEADLINE_S))
    assert [one.error_message for one in found if one.error_message] == []
    return [one.infer_response for one in found]


@pytest.mark.parametrize("load", LOADS, ids=lambda load: f"{load.model}-{load.bucket}")
def test_requests_made_for_perf_analyzer_are_answered(server: Server, load: Load) -> None:
    with grpc.insecure_channel(server.ports.grpc_url, [("grpc.max_receive_message_length", -1)]) as channel:
        found = answers(service_pb2_grpc.GRPCInferenceServiceStub(channel), load)
    known = {spec.name for spec in load.spec.outputs}
    assert found and {output.name for answer in found for output in answer.outputs} <= known
