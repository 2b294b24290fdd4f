"""`make check-tensorrt`: the demo's graphs are built for real, and what its table and exit code say of a failure."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from export import tensorrt_check
from export.tensorrt_check import LARGE, Case, Result, cases_of, check, main, random_sample, run_apart
from export.tensorrt_sizes import MAKERS, stable_diffusion
from proteus.deployment import DeploymentError
from proteus.engines import STAGES, graph_path
from proteus.profiles import profiles_of
from tests.changed_deployment import ABSENT, DEMO, changed

BUILT = Result(size="demo", stage="connector", precision="fp16", sms=(89,), nodes=10, profiles=1, plan_bytes=9)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_every_graph_of_the_demo_is_built_in_fp16_with_all_its_profiles(stage: str) -> None:
    (case,) = [case for case in cases_of(changed({}), "demo", "fp16") if case.stage == stage]
    result = check(case, DEMO, (89,))
    assert result.reason == ""
    assert result.profiles == len(profiles_of(changed({}), case.stage))
    assert min(result.nodes, result.plan_bytes, result.peak_bytes) > 0


@pytest.mark.slow
def test_a_connector_as_large_as_people_serve_is_built_for_every_kind_of_gpu() -> None:
    result = run_apart(Case(size="llava-1.5", stage="connector", precision="fp16"), DEMO)
    assert (result.reason, result.sms, result.profiles) == ("", (80, 89, 120), 1)
    assert result.plan_bytes > 2 * 1024 * 4096 * 2


def test_a_precision_that_a_stage_has_not_is_the_reason() -> None:
    result = check(Case(size="demo", stage="text_encoder", precision="fp8"), DEMO)
    assert result.sms == (89, 120)
    assert "text_encoder is not computed in fp8" in result.reason


def test_a_large_deployment_has_named_sizes_and_one_profile_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export.tensorrt_sizes.export_graph", lambda graph, repository: None)
    deployment = stable_diffusion(tmp_path, "text_encoder")
    profiles = profiles_of(deployment, "denoiser")
    assert [profile.name for profile in profiles] == ["512x512", "any"]
    assert profiles[0].shapes["latents"][2] == (16, 4, 64, 64)
    assert profiles[1].shapes["latents"][2] == (16, 4, 96, 96)
    assert profiles[0].shapes["text_states"][0] == (1, 77, 768)
    assert set(MAKERS) == set(LARGE)


def test_cases_are_those_of_the_deployment_and_of_both_sizes() -> None:
    mixed = changed({"gpu.denoiser.runtime": "torch", "gpu.vae_decoder.precision": "fp32", "checkpoint": ABSENT})
    assert [(case.size, case.stage, case.precision) for case in cases_of(mixed, "all", None)] == [
        ("demo", "text_encoder", "fp16"),
        ("demo", "vae_decoder", "fp32"),
        ("llava-1.5", "vision_encoder", "fp16"),
        ("llava-1.5", "connector", "fp16"),
        ("sd-1.5", "text_encoder", "fp16"),
        ("sd-1.5", "denoiser", "fp16"),
        ("sd-1.5", "vae_decoder", "fp32"),
    ]
    assert {case.precision for case in cases_of(mixed, "large", "bf16")} == {"bf16"}
    assert {case.size for case in cases_of(mixed, "demo", None)} == {"demo"}


@pytest.mark.parametrize(("reason", "status"), [("", 0), ("connector: TensorRT cannot read it", 1)])
def test_a_graph_that_is_not_built_is_told_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reason: str, status: int
) -> None:
    results = {case.stage: replace(BUILT, stage=case.stage) for case in cases_of(changed({}), "demo", None)}
    results["connector"] = replace(BUILT, reason=reason)
    monkeypatch.setattr(tensorrt_check, "run_apart", lambda case, path: results[case.stage])
    assert main(["--size", "demo"]) == status
    told = capsys.readouterr()
    assert reason in told.out
    assert ("failed" in told.out) == bool(reason)
    assert ("demo connector: failed" in told.err) == bool(reason)
    assert main(["--size", "demo", "--json"]) == status
    rows = json.loads(capsys.readouterr().out)
    assert [row["stage"] for row in rows] == list(STAGES)
    assert rows[1]["reason"] == reason


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--only", "demo/llm"], "no graph is named demo/llm; limit: known are demo/vision_encoder"),
        (["--deployment", "nowhere.toml"], "nowhere.toml cannot be read"),
    ],
)
def test_what_cannot_be_checked_ends_with_2(capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    assert main(words) == 2
    assert told in capsys.readouterr().err


def test_without_tensorrt_for_rtx_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    with pytest.raises(DeploymentError, match="run make setup-dev"):
        tensorrt_check.rtx()


@pytest.mark.parametrize(
    ("status", "out", "err", "reason"),
    [
        (-9, "", "", "exit -9: its process was killed: is there memory enough?"),
        (2, "", "a\nno graph is named x\n", "exit 2: no graph is named x"),
    ],
)
def test_a_process_that_ends_without_a_result_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, status: int, out: str, err: str, reason: str
) -> None:
    done = subprocess.CompletedProcess[str]([], status, out, err)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    case = Case(size="demo", stage="connector", precision="fp16")
    assert run_apart(case, DEMO) == Result(size="demo", stage="connector", precision="fp16", reason=reason)


def test_a_process_that_takes_too_long_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("python", 900)

    monkeypatch.setattr(subprocess, "run", late)
    assert run_apart(Case(size="demo", stage="connector", precision="fp16"), DEMO).reason == "not built within 900 s"


def test_random_samples_are_of_numbers_that_the_stage_gets() -> None:
    deployment = changed({})
    graph = graph_path(deployment.repository_path, "denoiser")
    sample = random_sample(graph, profiles_of(deployment, "denoiser")[0])
    assert {name: array.shape for name, array in sample.items()} == {
        "latents": (1, 8, 8, 8),
        "timestep": (1,),
        "text_states": (1, 48, 128),
    }
    assert 400 < sample["timestep"][0] < 600
