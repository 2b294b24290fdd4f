"""The stand-alone examples that the peer can answer; tests/server runs the others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from PIL import Image

from tests.client.draw_scripts import DRAW_REFUSAL, SEED
from tests.client.peer import Peer

EXAMPLE = Path(__file__).parents[2] / "client" / "draw.py"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(EXAMPLE), *words], capture_output=True, text=True, check=False)


def test_the_example_draws_with_previews_and_ends_with_the_report(peer: Peer, tmp_path: Path) -> None:
    out = tmp_path / "a.png"
    done = run("a red circle", "--n", "2", "--out", str(out), "--steps", "6", "--url", peer.url)
    assert (done.returncode, done.stderr) == (0, "")
    first, second, *rest = done.stdout.splitlines()
    assert (first.split(", ")[0], second.split(", ")[0]) == ("picture 0: step 5 of 6", "picture 1: step 5 of 6")
    assert f'"seed": {SEED}' in rest[0]
    assert json.loads("\n".join(rest[2:]))["usage"]["images"] == 2
    for name in ("a.png", "a-1.png"):
        with Image.open(tmp_path / name) as opened:
            assert opened.size == (64, 64)


def test_the_example_shows_a_refusal(peer: Peer, tmp_path: Path) -> None:
    done = run("refuse", "--out", str(tmp_path / "a.png"), "--url", peer.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert DRAW_REFUSAL in done.stderr
