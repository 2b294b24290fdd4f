"""A Triton for models without a server: requests that note their answers, and calls from one model into a port."""

from __future__ import annotations

import threading
from types import ModuleType, SimpleNamespace
from typing import Any

MODULE = "triton_python_backend_utils"


class Request:
    """A request of Triton's, and what it was answered."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        self.inputs, self.answers, self.ended = inputs, list[Any](), threading.Event()
        self.error, self.cancelled = "", False

    def get_response_sender(self) -> Request:
        return self

    def is_cancelled(self) -> bool:
        assert not self.ended.is_set(), "Triton would crash"
        return self.cancelled

    def send(self, response: Any = None, flags: int = 0) -> None:
        if isinstance(response, str):
            self.error = response
        elif response is not None:
            self.answers.append(response)
        if flags:
            self.ended.set()


def module() -> ModuleType:
    """What the backend room needs of it; a response is a dict of arrays, or the text of an error."""

    def tensor(name: str, array: Any) -> SimpleNamespace:
        return SimpleNamespace(name=name, as_numpy=lambda: array)

    def found(request: Request, name: str) -> SimpleNamespace | None:
        return tensor(name, request.inputs[name]) if name in request.inputs else None

    def response(tensors: Any = (), error: Any = None) -> Any:
        return str(error) if error is not None else {one.name: one.as_numpy() for one in tensors}

    made: Any = ModuleType(MODULE)
    made.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
    made.TRITONSERVER_MEMORY_CPU, made.PreferredMemory = 0, lambda kind, device: (kind, device)
    made.Tensor, made.get_input_tensor_by_name = tensor, found
    made.InferenceResponse, made.TritonError = response, lambda text: text
    made.Logger = SimpleNamespace(log_error=lambda text: None)
    return made  # type: ignore[no-any-return]
