"""`proteus cost` as its user sees it: by files and by sizes, for the deployment and for a bare checkpoint folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from proteus.cli import app
from proteus.deployment import Deployment
from proteus.errors import InvalidRequest
from proteus.estimate import parse_size
from proteus.language.messages import Message, PicturePart, TextPart
from proteus.language.prompt import PromptRenderer

ROOT = Path(__file__).parents[1]
DEMO = Deployment.load(ROOT / "deployments" / "demo.toml")
PICTURES = sorted(str(path) for path in (ROOT / "client" / "pictures").glob("*.png"))


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def proteus(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["cost", *arguments])


def document(*arguments: str) -> dict[str, Any]:
    done = proteus(*arguments, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    return dict(json.loads(done.stdout))


def test_files_and_text_cost_what_the_server_will_count() -> None:
    told = document(*PICTURES, "--text", "What is it?", "--max-tokens", "32")
    message = Message("user", (*(PicturePart(index) for index in range(len(PICTURES))), TextPart("What is it?")))
    prompt = PromptRenderer.from_checkpoint(DEMO.checkpoint_path).render([message], [36] * len(PICTURES))
    assert told["prompt_tokens"] == len(prompt.input_ids)
    total = told["total"]
    assert (total["visual_tokens"], total["text_tokens"]) == (prompt.visual_tokens, prompt.text_tokens)
    assert total["media_bytes"] == sum(Path(path).stat().st_size for path in PICTURES)
    # 2 · 4 layers · (prompt + answer) · 2 heads · 32 wide · 4 bytes of the engine's 32-bit cache
    assert total["kv_bytes"] == 2 * 4 * (len(prompt.input_ids) + 32) * 2 * 32 * 4


def test_a_size_costs_what_a_file_of_that_size_costs() -> None:
    by_file, by_size = document(PICTURES[0]), document("--image-size", "196x196")
    same = (
        "given_px",
        "encoder_input",
        "bucket",
        "visual_tokens",
        "patches",
        "encoder_flops",
        "kv_bytes",
        "decode_bytes",
    )
    assert {key: by_file["media"][0][key] for key in same} == {key: by_size["media"][0][key] for key in same}


def test_a_deployment_makes_smaller_what_its_tier_makes_smaller() -> None:
    (large,) = document("--image-size", "4000x3000")["media"]
    assert large["downscaled"]
    assert large["given_px"][0] * large["given_px"][1] <= DEMO.tiers.auto.max_pixels
    (low,) = document("--image-size", "4000x3000", "--detail", "low")["media"]
    assert low["given_px"][0] * low["given_px"][1] <= DEMO.tiers.low.max_pixels
    (bare,) = document("--image-size", "4000x3000", "--checkpoint", str(DEMO.checkpoint_path))["media"]
    assert (bare["given_px"], bare["downscaled"]) == ([4000, 3000], False)


def test_flamingo_and_fastv_are_options_over_the_same_encoder() -> None:
    sizes = ["--image-size", "400x300", "--image-size", "300x400", "--checkpoint", str(DEMO.checkpoint_path)]
    plain, seen, pruned = (
        document(*sizes, *options)
        for options in ([], ["--resample", "64", "--cross-every", "2"], ["--prune-after", "1", "--prune-drop", "0.75"])
    )
    one = 2 * 2 * 32 * 2  # keys and values · 2 heads · 32 wide · 16 bits
    assert plain["total"]["kv_bytes"] == 4 * 72 * one
    assert (seen["total"]["visual_tokens"], seen["total"]["kv_bytes"]) == (0, 4 * 2 * one)
    assert seen["total"]["cross_kv_bytes"] == 2 * 128 * one
    assert pruned["total"]["kv_bytes"] == (72 + 3 * 18) * one
    assert {told["total"]["encoder_flops"] for told in (plain, seen, pruned)} == {plain["total"]["encoder_flops"]}


def test_the_table_numbers_the_media_and_ends_with_a_total() -> None:
    done = proteus(*PICTURES[:2], "--text", "Which?")
    assert (done.exit_code, done.stderr) == (0, "")
    assert f"  1  {PICTURES[0]}: png, 196x196 px -> 1 of 96x96 px" in done.stdout.splitlines()
    assert "total" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if not line.startswith("  1  ")) <= 100


def test_no_digit_of_a_large_number_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    sizes = ["--image-size", "999999x999999", "--checkpoint", str(DEMO.checkpoint_path)]
    assert "…" not in proteus(*sizes, "--max-tokens", "999999999").stdout


def test_audio_without_an_end_is_wrong_usage() -> None:
    for seconds in ("inf", "nan", "-1", "1e300"):
        done = proteus("--audio-seconds", seconds)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "'--audio-seconds'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no-such.png"], ["no-such.png cannot be read", "fix: "]),
        (["/dev/zero"], ["/dev/zero is a device", "fix: "]),
        (["Makefile"], ["Makefile: bytes that are no known picture", "fix: "]),
        (["--image-size", "20000x20"], ["20000x20: ", "max_side_px = 10,000"]),
        (["--image-size", "64x64"] * 5, ["5 pictures in one request", "max_pictures = 4"]),
        (["--image-size", "wide"], ["size 'wide'", "write it like 640x480"]),
        (["--image-size", "4x0"], ["size '4x0'"]),
        (["--video-size", "640x480x8"], ["reads no video"]),
        ([], ["nothing to estimate", "--image-size"]),
    ],
)
def test_what_cannot_be_estimated_is_said_in_one_line(arguments: list[str], words: list[str]) -> None:
    done = proteus(*arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert all(word in done.stderr for word in words), done.stderr


@pytest.mark.parametrize("text", ["640", "640x", "x480", "640x480x0", "0640x480", "6.4x2", "-1x5", "1x9999999"])
def test_a_size_is_whole_numbers_and_a_cross(text: str) -> None:
    with pytest.raises(InvalidRequest, match="WIDTHxHEIGHT"):
        parse_size(text)


def test_the_encoder_shapes_of_a_deployment_are_listed() -> None:
    assert CliRunner().invoke(app, ["buckets"]).stdout == "96x96 tiles\n"
    assert json.loads(CliRunner().invoke(app, ["buckets", "--json"]).stdout) == [
        {"kind": "tiles", "rows": 96, "cols": 96, "label": "96x96 tiles"}
    ]
