"""The command `proteus`. Exit codes: 0 done, 1 server, connection or refused medium, 2 usage."""

from proteus.cli.commands import app, main

__all__ = ["app", "main"]
