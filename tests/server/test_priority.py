"""What can wait gives way: each model's processes have the priority that the deployment file gives them."""

from __future__ import annotations

import os
from pathlib import Path

from proteus.deployment import Deployment
from proteus.launcher import Server

LEAST = 19


def priorities(server: Server, model: str) -> set[int]:
    """Of all threads of the model's processes."""
    threads = [int(thread) for pid in server.stub_pids()[model] for thread in os.listdir(f"/proc/{pid}/task")]
    return {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads}


def test_what_draws_runs_as_nice_as_it_is_told_beside_the_server(draw_deployment: Path, draw_server: Server) -> None:
    drawing = Deployment.load(draw_deployment).drawing
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert drawing.denoiser.nice > 0
    expected = {
        "draw": own,
        "denoiser": min(own + drawing.denoiser.nice, LEAST),
        "text_encoder": min(own + drawing.text_encoder.nice, LEAST),
        "vae_decoder": min(own + drawing.vae_decoder.nice, LEAST),
    }
    assert {model: priorities(draw_server, model) for model in expected} == {
        model: {nice} for model, nice in expected.items()
    }
