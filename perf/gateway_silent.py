"""Stands in for a server where only the gateway is looked at: says one word of each answer, and then nothing.

    python -m perf.gateway_silent

It speaks Triton's protocol; a question with the word "now" in it is answered to its end.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

REPORT = {
    "finish_reason": "length",
    "usage": {"text_tokens": 8, "visual_tokens": 0, "output_tokens": 1, "cached_tokens": 0},
    "stages_ms": {"total": 0.0},
    "choices": [{"index": 0, "finish_reason": "length", "output_tokens": 1}],
}


class Silent(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Of Triton's services, those that the gateway asks for, by the protocol's names."""

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for request in requests:
            document = json.loads(request.raw_input_contents[0][4:])
            if "stop" in document:
                yield _event(report={"stopped": 1})
                continue
            now = "now" in json.dumps(document["messages"])
            yield _event(text="Well", report=REPORT if now else None)
            if not now:
                await asyncio.Event().wait()  # until the client leaves

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        return service_pb2.ServerReadyResponse(ready=True)

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        return service_pb2.ModelReadyResponse(ready=True)


def _event(*, text: str = "", report: Any = None) -> Any:
    response = service_pb2.ModelInferResponse(model_name="chat")
    for name, value in (("text", text), ("report", "" if report is None else json.dumps(report))):
        response.outputs.add(name=name, datatype="BYTES", shape=[1])
        encoded = value.encode()
        response.raw_output_contents.append(struct.pack("<I", len(encoded)) + encoded)
    return service_pb2.ModelStreamInferResponse(infer_response=response)


async def run() -> None:
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Silent(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"grpc 127.0.0.1:{port}\nstop with Ctrl-C", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    sys.exit(asyncio.run(run()))
