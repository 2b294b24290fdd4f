"""The client library: ask a Proteus server about pictures, or have it draw one, from threads or from asyncio.

Importing it loads neither torch nor ONNX Runtime nor anything of the server.
"""

from proteus.client.asynchronous import AsyncClient
from proteus.client.blocking import Client
from proteus.client.draw_request import DrawOptions
from proteus.client.drawing import Drawing, Drawn, DrawUsage, PictureCost, Preview
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
    "DrawOptions",
    "DrawUsage",
    "Drawing",
    "Drawn",
    "InvalidInput",
    "LikelyToken",
    "Options",
    "Picture",
    "PictureCost",
    "Piece",
    "Preview",
    "ServerError",
    "TimedOut",
    "TokenLogprob",
    "Usage",
]
