"""The command `draw`, against a peer that speaks the protocol."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
import typer.main
from PIL import Image
from typer.testing import CliRunner, Result

from proteus.cli import app
from proteus.client import Client, DrawOptions, InvalidInput
from proteus.client.draw_files import DrawnFiles
from tests.client.draw_scripts import DRAW_REFUSAL, SEED, STAGES_MS, settings_of
from tests.client.peer import Peer

PROMPT = "a red circle"
BILL = (
    "cost    40 evaluations, 2,560 token passes, 100.5 ms of the denoiser; 12 text tokens; finish: done\n"
    "ms      parse 0.1 · condition 3.0 · denoise 250.5 · total 260.0\n"
)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def draw(*words: str) -> Result:
    return CliRunner().invoke(app, ["draw", *words])


def written(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_a_picture_is_written_and_told_with_its_seed_settings_and_bill(peer: Peer, empty_folder: Path) -> None:
    result = draw(PROMPT, "--url", peer.url)
    line = f"drawing.png  64x64 png; seed {SEED}, image 0, 20 steps, guidance 3, euler\n"
    assert (result.exit_code, result.stdout) == (0, line + BILL)
    assert written(empty_folder) == ["drawing.png"]
    assert peer.documents == [{"prompt": PROMPT, "format": "png"}], "without a terminal nobody sees previews"


def test_previews_are_told_in_lines_where_there_is_no_terminal(peer: Peer) -> None:
    result = draw(PROMPT, "--preview", "--steps", "60", "--url", peer.url)
    lines = result.stdout.splitlines()
    assert lines[:2] == ["picture 0: step 3 of 60", "picture 0: step 6 of 60"]
    assert lines[-1] == "        first preview after 40.2"
    assert peer.documents[0]["preview_every"] == 3


def test_json_is_one_document_and_nothing_else(peer: Peer, empty_folder: Path) -> None:
    result = draw(PROMPT, "--n", "2", "--seed", "5", "--json", "--preview", "--url", peer.url)
    document = json.loads(result.stdout)
    assert result.stderr == ""
    assert [(picture["path"], picture["seed"], picture["image_index"]) for picture in document["pictures"]] == [
        ("drawing-0.png", 5, 0),
        ("drawing-1.png", 5, 1),
    ]
    assert document["pictures"][1]["settings"] == settings_of(peer.documents[0], 1)
    assert document["usage"]["evaluations"] == 80
    assert document["stages_ms"] == STAGES_MS
    assert (document["finish_reason"], document["first_preview_ms"]) == ("done", None)
    assert [cost["denoise_ms"] for cost in document["costs"]] == [250.5, 250.5]
    assert written(empty_folder) == ["drawing-0.png", "drawing-1.png"]


def test_every_option_reaches_the_request_document(peer: Peer) -> None:
    words = (
        "--negative blue --size 96x64 --steps 3 --guidance 1 --sampler heun --seed 5 --first-index 2 --n 2 "
        "--format webp --quality 80 --preview-every 4 --preview-by decoder --request-id r --cache-scope mine "
        "--tenant t --deadline-ms 9000 --batch --timeout 30"
    )
    assert draw(PROMPT, *words.split(), "--url", peer.url).exit_code == 0
    assert peer.documents == [
        {
            "prompt": PROMPT,
            "negative_prompt": "blue",
            "size": "96x64",
            "steps": 3,
            "guidance": 1.0,
            "sampler": "heun",
            "seed": 5,
            "first_index": 2,
            "n": 2,
            "format": "webp",
            "quality": 80,
            "preview_every": 4,
            "preview_by": "decoder",
            "request_id": "r",
            "cache_scope": "mine",
            "tenant": "t",
            "latency_class": "batch",
            "deadline_ms": 9000,
        }
    ]


def test_every_option_of_the_library_is_one_of_the_command() -> None:
    command = typer.main.get_group(app).commands["draw"]
    names = {parameter.name for parameter in command.params}
    assert DrawOptions.__annotations__.keys() - names == {"latency_class"}, "which is --batch"


@pytest.mark.parametrize(
    ("words", "there", "files"),
    [
        ("", ["drawing.png"], ["drawing-0.png"]),
        ("", ["drawing.png", "drawing-7.png", "drawing-x.png"], ["drawing-8.png"]),
        ("", ["drawing.jpg"], ["drawing.png"]),
        ("--n 2", ["drawing-1.png"], ["drawing-2.png", "drawing-3.png"]),
        ("--out a", [], ["a.png"]),
        ("--out a.JPG", [], ["a.JPG"]),
        ("--out a.webp --n 2", [], ["a-0.webp", "a-1.webp"]),
        ("--out a.png --n 2", ["a.png", "a-2.png"], ["a-0.png", "a-1.png"]),
        ("--out sub", ["sub/x"], ["sub/drawing.png"]),
        ("--out new/one/", [], ["new/one/drawing.png"]),
        ("--out ./a.png", [], ["a.png"]),
        ("--out sub --format jpeg --n 2", ["sub/drawing-0.jpg"], ["sub/drawing-1.jpg", "sub/drawing-2.jpg"]),
        ("--out sub/a.png --overwrite", ["sub/a.png"], ["sub/a.png"]),
        ("--overwrite", ["drawing.png"], ["drawing-0.png"]),
    ],
)
def test_no_file_is_replaced_and_each_picture_has_one(
    words: str, there: list[str], files: list[str], peer: Peer, empty_folder: Path
) -> None:
    for name in there:
        (empty_folder / name).parent.mkdir(exist_ok=True)
        (empty_folder / name).write_text("mine")
    result = draw(PROMPT, *words.split(), "--url", peer.url)
    assert result.exit_code == 0
    assert [line.split("  ")[0] for line in result.stdout.splitlines()[: len(files)]] == files
    assert written(empty_folder) == sorted({*there, *files})
    assert {(empty_folder / name).read_text() for name in there if name not in files} <= {"mine"}
    for name in files:
        with Image.open(empty_folder / name) as opened:
            assert opened.format == {"png": "PNG", "jpg": "JPEG", "webp": "WEBP"}[name.lower().rpartition(".")[2]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--out there.png", "there.png exists: give another --out, or --overwrite"),
        ("--out there.png --n 9", "there-8.png exists"),
        ("--out nowhere/a.png", "there is no folder nowhere"),
        ("--out a.gif", "end it with .png, .jpg, .jpeg, .webp"),
        ("--out a.png --format jpeg", "a.png ends as png, and the format asked for is jpeg"),
        ("--format gif", "'gif' is not one of"),
        ("--guidance nan", "guidance = nan cannot be sent: give a finite number"),
        ("--url http://x", "is no server address"),
        ("--step 3", "No such option"),
    ],
)
def test_wrong_usage_exits_with_two_before_anything_is_sent(
    words: str, said: str, peer: Peer, empty_folder: Path
) -> None:
    for name in ("there.png", "there-8.png"):
        (empty_folder / name).write_text("mine")
    result = draw(PROMPT, "--url", peer.url, *words.split())
    assert (result.exit_code, peer.requests) == (2, [])
    assert said in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize("flag", ["--json", "--steps=1000"])
def test_a_refusal_is_one_line_on_standard_error(flag: str, peer: Peer, empty_folder: Path) -> None:
    result = draw("refuse", flag, "--url", peer.url)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"{DRAW_REFUSAL}\n")
    assert written(empty_folder) == []


def test_pictures_that_came_before_an_error_are_kept(peer: Peer, empty_folder: Path) -> None:
    result = draw("break off", "--n", "2", "--url", peer.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert written(empty_folder) == ["drawing-0.png"]


def test_a_drawing_that_was_stopped_says_so(peer: Peer) -> None:
    result = draw("stopped", "--n", "2", "--url", peer.url)
    assert result.exit_code == 0
    assert "finish: cancelled" in result.stdout


def test_no_server_exits_with_one(closed_url: str) -> None:
    result = draw(PROMPT, "--url", closed_url)
    assert (result.exit_code, result.stderr) == (1, f"no server at {closed_url}: start one with `proteus serve`\n")


def test_a_folder_that_cannot_be_made_is_said_in_one_line(peer: Peer, empty_folder: Path) -> None:
    (empty_folder / "file").write_text("mine")
    result = draw(PROMPT, "--out", "file/", "--url", peer.url)
    assert (result.exit_code, result.stderr) == (2, "cannot make the folder file: File exists\n")


def test_a_name_that_was_taken_meanwhile_is_not_replaced(peer: Peer, empty_folder: Path) -> None:
    files = DrawnFiles.plan("a.png", None, pictures=1, overwrite=False)
    (empty_folder / "a.png").write_text("mine")
    with Client(peer.url) as client, pytest.raises(InvalidInput, match=r"cannot write the picture a\.png: File exists"):
        files.save(client.draw(PROMPT).pictures[0])


INTERRUPTIBLE = """
import signal
from proteus.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs start without
main()
"""


def test_ctrl_c_stops_the_drawing_at_the_server_and_keeps_what_is_done(peer: Peer, empty_folder: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTIBLE, "draw", "never end", "--n", "2", "--url", peer.url]
    with subprocess.Popen(command, cwd=empty_folder, env=_environment(), stderr=subprocess.PIPE, text=True) as running:
        while not (empty_folder / "drawing-0.png").exists():
            assert running.poll() is None
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        assert peer.cancelled.wait(timeout=10)
        assert running.wait(timeout=10) == 130, "as shells tell an interrupt"
        assert running.stderr is not None
        assert running.stderr.read() == ""


def test_a_terminal_sees_the_bar_and_the_picture_that_becomes(peer: Peer, empty_folder: Path) -> None:
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 80))
    command = [sys.executable, "-m", "proteus.cli", "draw", PROMPT, "--preview", "--url", peer.url]
    running = subprocess.Popen(command, cwd=empty_folder, env=_environment(), stdout=follower)
    os.close(follower)
    shown = b""
    try:
        while chunk := os.read(leader, 65536):
            shown += chunk
    except OSError:  # the other side is closed
        pass
    os.close(leader)
    assert running.wait(timeout=10) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "20/20 steps" in text
    assert re.search(r"\x1b\[38;2;200;0;200;48;2;200;0;200m▀{42}\x1b", shown.decode()), "21 rows are free of 24"
    assert f"drawing.png  64x64 png; seed {SEED}" in text
    assert peer.documents[0]["preview_every"] == 1


def _environment() -> dict[str, str]:
    root = Path(__file__).parents[2]
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    return {**kept, "PYTHONPATH": str(root / "src"), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
