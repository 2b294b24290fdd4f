"""Question and pictures -> the request message of the `chat` model (B bytes of all pictures, P pictures).

request      STRING [1]  JSON document: messages and options; an option that is not given is the server's to choose
image_bytes  UINT8  [B]  the encoded files, one after the other
image_lengths INT64 [P]  bytes of each
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal, Protocol, TypeAlias, TypedDict, runtime_checkable

from proteus.client.errors import InvalidInput
from proteus.client.wire import add_tensor, document_request


@runtime_checkable
class Saves(Protocol):
    """A Pillow image, without importing Pillow."""

    def save(self, fp: IO[bytes], format: str) -> None: ...


Picture: TypeAlias = Path | str | bytes | Saves  # a file's path, a file's bytes, or a Pillow image (sent as PNG)
Message: TypeAlias = Mapping[str, Any]  # {"role": ..., "content": text or parts}, as in the request document


class Options(TypedDict, total=False):
    """How to answer; what is left out takes the server's default."""

    max_tokens: int
    min_tokens: int  # before these, the answer does not end by itself
    n: int  # answers
    temperature: float  # 0 is greedy
    top_p: float
    top_k: int  # 0 is off
    min_p: float  # 0 is off
    frequency_penalty: float  # -2 to 2
    presence_penalty: float  # -2 to 2
    repetition_penalty: float  # 1 is off
    logit_bias: Mapping[int, float] | Mapping[str, float]  # by token id
    logprobs: bool
    top_logprobs: int  # most likely tokens that are told with `logprobs`
    seed: int | None
    stop: Sequence[str] | str  # the text ends before the first of these
    request_id: str  # by which `Client.stop` stops it
    cache_scope: str  # requests share encoded pictures and computed prompts only within one scope
    tenant: str  # whose share of the server's capacity it is; else the cache scope
    latency_class: Literal["interactive", "batch"]  # "batch" can wait
    deadline_ms: int  # to be started; a request that waits longer is refused
    detail: Literal["low", "auto", "high"]  # quality tier of every picture part that names none
    sent: Mapping[str, Any]  # when it counts as sent: `clock` and `ns` of `proteus.clock`; left out, as it is sent
    timeout_s: float | None  # for the whole answer; None waits without end


def question_messages(question: str, pictures: Sequence[Picture] | Picture) -> list[Message]:
    """One user message: the pictures in their order, then the question."""
    images = [{"type": "image"} for _ in listed(pictures)]
    return [{"role": "user", "content": [*images, {"type": "text", "text": question}]}]


def build_request(messages: Sequence[Message], pictures: Sequence[Picture] | Picture, options: Options) -> Any:
    """The `ModelInferRequest`. The n-th part `{"type": "image"}` without data stands for the n-th picture.

    Raises `InvalidInput` for a picture that cannot be read and for text that is not Unicode, `TypeError` for an
    option that does not exist.
    """
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}; there are {', '.join(Options.__annotations__)}")
    fields = {name: value for name, value in options.items() if name not in ("timeout_s", "detail")}
    document = {"messages": _with_detail(messages, options.get("detail")), **fields}
    # What is of another kind goes out as it is: the server names the field and what it takes.
    stop, biases = document.get("stop"), document.get("logit_bias")
    if isinstance(stop, Iterable):
        document["stop"] = [stop] if isinstance(stop, str) else list(stop)
    if isinstance(biases, Mapping):
        document["logit_bias"] = {str(token_id): bias for token_id, bias in biases.items()}
    files = [read_picture(picture) for picture in listed(pictures)]

    request = document_request("chat", document)
    if files:
        add_tensor(request, "image_bytes", "UINT8", sum(map(len, files)), b"".join(files))
        add_tensor(request, "image_lengths", "INT64", len(files), struct.pack(f"<{len(files)}q", *map(len, files)))
    return request


def _with_detail(messages: Sequence[Message], detail: str | None) -> list[Message]:
    """The messages, `detail` written into every picture part without one."""
    if detail is None:
        return list(messages)
    return [
        {**message, "content": [_part_with_detail(part, detail) for part in message["content"]]}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def _part_with_detail(part: Any, detail: str) -> Any:
    is_picture = isinstance(part, Mapping) and part.get("type") == "image"
    return {"detail": detail, **part} if is_picture else part


def listed(pictures: Sequence[Picture] | Picture) -> list[Picture]:
    """One picture or several, as a list."""
    return [pictures] if isinstance(pictures, Path | str | bytes | Saves) else list(pictures)


def read_picture(picture: Picture) -> bytes:
    """The encoded bytes of a picture; a Pillow image becomes PNG, a file is sent as it is."""
    if isinstance(picture, bytes):
        return picture
    if isinstance(picture, Path | str):
        return _read_file(Path(picture))
    if isinstance(picture, Saves):
        encoded = io.BytesIO()
        picture.save(encoded, format="PNG")
        return encoded.getvalue()
    raise InvalidInput(f"a picture is a path, bytes or a Pillow image, not {type(picture).__name__}")


def _read_file(path: Path) -> bytes:
    try:
        if path.is_char_device():
            raise InvalidInput(f"cannot read the picture {path}: it is a device")
        return path.read_bytes()
    except FileNotFoundError:
        raise InvalidInput(f"cannot read the picture {path}: there is no such file") from None
    except IsADirectoryError:
        raise InvalidInput(f"cannot read the picture {path}: it is a folder") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "this is no file name"
        raise InvalidInput(f"cannot read the picture {path}: {reason}") from None
