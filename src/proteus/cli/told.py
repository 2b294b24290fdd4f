"""What a program tells of itself: a small JSON document over HTTP, from an address that a person typed."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Mapping
from typing import Any

from proteus.client.errors import ConnectionFailed, InvalidInput

TIMEOUT_S = 4.0
MAX_BODY_BYTES = 1 << 20
ADDRESS = re.compile(r"(?:http://)?(?P<host>[\w.\-]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})/?", re.ASCII)


def told_by(url: str, path: str, *, keys: Mapping[str, type], kind: str, silent: str, give: str) -> Mapping[str, Any]:
    """The document at `path`, which has `keys` of those types.

    Raises InvalidInput where `url` is no address (`give` says which one is meant), ConnectionFailed where nothing
    answers (`silent` says why that may be) or what does is no `kind`.
    """
    address = ADDRESS.fullmatch(url)
    if address is None:
        raise InvalidInput(f"{url!r} is no address: give {give}")
    connection = http.client.HTTPConnection(address["host"].strip("[]"), int(address["port"]), timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        told = json.loads(connection.getresponse().read(MAX_BODY_BYTES))
    except (OSError, http.client.HTTPException, OverflowError) as error:
        raise ConnectionFailed(f"nothing answers at {url}: {silent}") from error
    except ValueError as error:
        raise ConnectionFailed(f"what answers at {url} is no {kind}") from error
    finally:
        connection.close()
    if not isinstance(told, dict) or not all(isinstance(told.get(key), type_) for key, type_ in keys.items()):
        raise ConnectionFailed(f"what answers at {url} is no {kind}")
    return told
