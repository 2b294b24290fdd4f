"""The client library: ask a Proteus server about pictures over gRPC streaming, from threads or from asyncio.

Importing it loads neither torch nor ONNX Runtime nor anything of the server.
"""

from proteus.client.asynchronous import AsyncClient
from proteus.client.blocking import Client
from proteus.client.errors import ClientError, ConnectionFailed, InvalidInput, ServerError, TimedOut
from proteus.client.request import Options, Picture
from proteus.client.results import Answer, Choice, LikelyToken, Piece, TokenLogprob, Usage

__all__ = [
    "Answer",
    "AsyncClient",
    "Choice",
    "Client",
    "ClientError",
    "ConnectionFailed",
    "InvalidInput",
    "LikelyToken",
    "Options",
    "Picture",
    "Piece",
    "ServerError",
    "TimedOut",
    "TokenLogprob",
    "Usage",
]
