"""Starts, watches and stops the embedded tritonserver."""

from __future__ import annotations

from proteus.launcher.failure import LaunchFailed
from proteus.launcher.ports import Ports
from proteus.launcher.repository import Repository
from proteus.launcher.serve import serve
from proteus.launcher.server import Server
from proteus.launcher.tracing import Tracing
from proteus.launcher.watch import RestartPolicy

__all__ = ["LaunchFailed", "Ports", "Repository", "RestartPolicy", "Server", "Tracing", "serve"]
