"""`proteus cost --draw` says before a request queues what its report says afterwards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from proteus.cli import app
from tests.test_contract_draw import FLUX, SD3, SD15, deployment_in

ROOT = Path(__file__).parents[1]


def cost(folder: Path, *words: str, facts: dict[str, Any] = SD15, **manifest: Any) -> Result:
    """Of a deployment with such a checkpoint, whose tokenizers are the demo's."""
    (folder / "draw_checkpoint" / "tokenizer").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "checkpoints" / "demo" / "tokenizer.json", folder / "draw_checkpoint" / "tokenizer")
    deployment = deployment_in(folder, facts, **manifest)
    return CliRunner().invoke(app, ["cost", *words, "--deployment", str(deployment.path)])


def document(folder: Path, *words: str, **given: Any) -> dict[str, Any]:
    done = cost(folder, *words, "--json", **given)
    assert (done.exit_code, done.stderr) == (0, "")
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], {"steps": 20, "branches": 2, "images": 1, "evaluations": 40, "token_passes": 64 * 40}),
        (["--guidance", "1"], {"branches": 1, "evaluations": 20}),
        (["--sampler", "heun"], {"evaluations": 2 * 39}),
        (["--sampler", "heun", "--guidance", "1", "--steps", "1"], {"evaluations": 1}),
        (["--sampler", "dpmpp_2m", "--steps", "7", "--n", "3"], {"images": 3, "evaluations": 3 * 2 * 7}),
        (["--sampler", "heun", "--n", "8"], {"evaluations": 8 * 2 * 39, "token_passes": 64 * 8 * 2 * 39}),
    ],
)
def test_sampler_guidance_and_number_of_pictures_are_counted(
    words: list[str], told: dict[str, int], tmp_path: Path
) -> None:
    found = document(tmp_path, "--draw", "64x64", *words)
    assert {key: found[key] for key in told} == told


def test_what_is_left_out_is_the_deployments_default(tmp_path: Path) -> None:
    found = document(tmp_path, "--draw", "96x64")
    assert {key: found[key] for key in ("size", "steps", "guidance", "sampler", "latent_tokens", "text_tokens")} == {
        "size": "96x64",
        "steps": 20,
        "guidance": 2.0,
        "sampler": "euler",
        "latent_tokens": 12 * 8,
        "text_tokens": None,
    }


@pytest.mark.parametrize(("facts", "tokens"), [(SD15, 64), (SD3, 16), (FLUX, 16)], ids=["unet", "sd3", "flux"])
def test_a_latent_token_is_as_the_checkpoint_has_it(facts: dict[str, Any], tokens: int, tmp_path: Path) -> None:
    assert document(tmp_path, "--draw", "64x64", facts=facts)["latent_tokens"] == tokens


def test_guidance_as_a_number_takes_no_second_branch(tmp_path: Path) -> None:
    found = document(tmp_path, "--draw", "64x64", facts=FLUX, embedded_guidance=True)
    assert (found["branches"], found["evaluations"]) == (1, 20)


def test_text_tokens_are_those_of_both_branches(tmp_path: Path) -> None:
    def tokens(*words: str) -> int:
        return int(document(tmp_path, "--draw", "64x64", *words)["text_tokens"])

    prompt = tokens("--text", "a red circle", "--guidance", "1")
    assert prompt > 0
    both = tokens("--text", "a red circle", "--negative", "a red circle")
    assert both == 2 * prompt


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--draw", "70x64"], 'size = "70x64"; limit: sides are multiples of [draw] side_multiple_px = 32'),
        (["--draw", "wide"], 'size = "wide"; limit: WIDTHxHEIGHT in px'),
        (["--draw", "1024x1024"], "limit: [draw] max_side_px = 96"),
        (["--draw", "64x64", "--steps", "101"], "steps = 101; limit: 1 to [draw] max_steps = 100"),
        (["--draw", "64x64", "--steps", "0"], "steps = 0; limit: 1 to [draw]"),
        (["--draw", "64x64", "--guidance", "nan"], "guidance = nan; limit: 1 (none) to [draw] max_guidance = 20"),
        (["--draw", "64x64", "--n", "9"], "n = 9; limit: 1 to [draw] max_images = 8"),
        (
            ["--draw", "64x64", "--n", "8", "--steps", "100", "--sampler", "heun"],
            "the request to draw needs evaluations = 3,184; limit: [draw.admission.request] evaluations",
        ),
        (["--draw", "64x64", "--text", " "], "prompt is empty"),
        (["--draw", "64x64", "--text", "red " * 500], "prompt_too_long: prompt has "),
    ],
)
def test_what_the_door_refuses_is_refused_here(words: list[str], said: str, tmp_path: Path) -> None:
    done = cost(tmp_path, *words)
    assert (done.exit_code, done.stdout) == (1, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_deployment_that_draws_nothing_says_what_to_do(tmp_path: Path) -> None:
    text = (ROOT / "deployments" / "demo.toml").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("draw_checkpoint")]
    (tmp_path / "deployment.toml").write_text("\n".join(lines), encoding="utf-8")
    done = CliRunner().invoke(app, ["cost", "--draw", "64x64", "--deployment", str(tmp_path / "deployment.toml")])
    assert (done.exit_code, done.stdout) == (1, "")
    assert "has no checkpoint that draws; fix: set draw_checkpoint" in done.stderr


@pytest.mark.parametrize(
    ("transformer", "words", "told"),
    [
        ({"_class_name": "SD3Transformer2DModel", "patch_size": 2}, [], (4096, 40)),
        ({"_class_name": "SD3Transformer2DModel", "patch_size": 2}, ["--sampler", "heun"], (4096, 78)),
        ({"_class_name": "FluxTransformer2DModel", "guidance_embeds": True}, [], (4096, 20)),
        ({"_class_name": "FluxTransformer2DModel", "guidance_embeds": False}, ["--guidance", "1"], (4096, 20)),
    ],
)
def test_a_folder_alone_has_no_contract(
    transformer: dict[str, Any], words: list[str], told: tuple[int, int], tmp_path: Path
) -> None:
    for part, config in (("vae", {"block_out_channels": [1, 1, 1, 1]}), ("transformer", transformer)):
        (tmp_path / part).mkdir()
        (tmp_path / part / "config.json").write_text(json.dumps(config))
    command = ["cost", "--draw", "1024x1024", *words, "--checkpoint", str(tmp_path), "--json"]
    found = json.loads(CliRunner().invoke(app, command).stdout)
    assert (found["latent_tokens"], found["evaluations"]) == told
    refused = CliRunner().invoke(app, [*command, "--text", "a red circle"])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "text is counted by a deployment" in refused.stderr


def test_the_table_names_what_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = cost(tmp_path, "--draw", "64x64", "--n", "2", "--sampler", "heun", "--text", "a red circle")
    assert done.exit_code == 0
    for word in ("64x64", "heun", "20", "156", "9,984", "text tokens"):
        assert word in done.stdout
