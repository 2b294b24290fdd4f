"""The limits that a server publishes as parameters of its models `chat` and `draw`, read from their configurations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tritonclient.grpc import service_pb2

from proteus.client.errors import ServerError
from proteus.client.wire import MODELS, Model


def contract_request(model: Model) -> Any:
    """The request that `read_response` reads the answer of."""
    return service_pb2.ModelConfigRequest(name=model)


def read_response(response: Any) -> dict[str, str]:
    """The parameters in a `ModelConfigResponse`."""
    return {key: value.string_value for key, value in response.config.parameters.items()}


def whole_contract(published: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """The contract that the models' parameters make together; raises `ServerError` where there is none."""
    contract = read_contract({key: text for parameters in published for key, text in parameters.items()})
    if not contract:
        raise ServerError("no_contract", f"neither {' nor '.join(MODELS)} publishes limits", fix="update the server")
    return contract


def read_contract(parameters: Mapping[str, str]) -> dict[str, Any]:
    """Parameters `image.max_bytes`: `10485760` … as nested tables; a parameter without a table is none of it.

    Tables, not types: a client keeps reading the contract of a server that has learned new keys.
    """
    contract: dict[str, Any] = {}
    for key, text in sorted(parameters.items()):
        *path, name = key.split(".")
        if path:
            table = contract
            for step in path:
                table = table.setdefault(step, {})
            table[name] = _value(text)
    return contract


def _value(text: str) -> Any:
    """Lists, numbers and booleans are JSON, text stands as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text
