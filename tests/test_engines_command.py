"""`proteus engines`: what is listed, and what `use` changes and tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from proteus.cli.commands import app
from proteus.deployment import Deployment
from proteus.engines import STAGES, builds_of, check_installed, graph_path, plan_path
from proteus.profiles import other_profiles
from tests.engine_builds import SM, VERSION, build, demo_copy, serve_all


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return demo_copy(tmp_path)


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["engines", *words])


def test_the_command_lists_builds_as_a_table_and_as_json(deployment: Deployment) -> None:
    path = str(deployment.path)
    assert "no engines are kept" in run("--deployment", path).output
    serve_all(deployment)
    build(deployment, "connector", b"old", tensorrt_version="10.16.1.11", onnx_sha256="0" * 64, profiles=[])
    rows = json.loads(run("--deployment", path, "--json").output)
    assert {(row["model"], row["name"]): row["served"] for row in rows if row["model"] == "connector"} == {
        ("connector", "11.4.0.1-sm90-fp16"): True,
        ("connector", "10.16.1.11-sm90-fp16"): False,
    }
    assert {(row["graph"], row["profiles"]) for row in rows} == {("same", "same"), ("other", "other")}
    assert len(rows) == 6
    table = run("--deployment", path).output
    assert [name for name in (*STAGES, "other graph,", "2026-11-30") if name not in table] == []


def test_the_command_goes_back_to_an_older_build(deployment: Deployment) -> None:
    path, repository = str(deployment.path), deployment.repository_path
    serve_all(deployment)
    for stage in STAGES:
        build(deployment, stage, b"old", tensorrt_version="10.16.1.11")
    done = run("use", "10.16.1.11", "--model", "connector", "--deployment", path)
    assert done.output == "connector is served by 10.16.1.11-sm90-fp16 from the next start on\n"
    assert plan_path(repository, "connector").read_bytes() == b"old"
    assert plan_path(repository, "denoiser").read_bytes() == b"plan"
    assert run("use", "10.16.1.11", "--deployment", path).output.count("is served by") == len(STAGES)
    assert {plan_path(repository, stage).read_bytes() for stage in STAGES} == {b"old"}
    graph_path(repository, "connector").write_bytes(b"another")
    assert "was built from another ONNX file than is there" in run("use", "11.4.0.1", "--deployment", path).output


def test_the_command_tells_what_keeps_a_build_from_being_served(deployment: Deployment) -> None:
    build(deployment, "connector", precision="bf16", profiles=[], onnx_sha256="0" * 64)
    told = run("use", "11.4.0.1-sm90-bf16", "--deployment", str(deployment.path)).output.splitlines()
    assert [line.partition("-bf16 ")[2] for line in told[1:]] == [
        "was built from another ONNX file than is there",
        f'computes in bf16: set gpu.connector.precision = "bf16" in {deployment.path}, and run '
        "python -m proteus.configs on it",
        f"was built for other sizes or batches than {deployment.path} has",
    ]


def test_a_repository_that_cannot_be_written_is_told_in_one_line(deployment: Deployment) -> None:
    build(deployment, "connector")
    graph_path(deployment.repository_path, "connector").unlink()
    (deployment.repository_path / "connector" / "1").rmdir()
    done = run("use", "11.4.0.1", "--deployment", str(deployment.path))
    assert done.exit_code == 1
    assert "cannot be replaced (No such file or directory: " in done.output


def test_builds_of_a_checkpoint_that_is_served_no_more_are_listed(deployment: Deployment) -> None:
    serve_all(deployment)
    text = deployment.path.read_text(encoding="utf-8")
    name = next(line for line in text.splitlines() if line.startswith("draw_checkpoint"))
    deployment.path.write_text(text.replace(name, ""), encoding="utf-8")
    rows = json.loads(run("--deployment", str(deployment.path), "--json").output)
    assert {row["model"]: row["profiles"] for row in rows}["denoiser"] == "other"
    assert {row["model"]: row["profiles"] for row in rows}["connector"] == "same"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("use", "12.0"), "is named 12.0"),
        (("use", "12.0", "--model", "llm"), "no engines are made of llm"),
    ],
)
def test_the_command_refuses_in_one_line(deployment: Deployment, words: tuple[str, ...], told: str) -> None:
    done = run(*words, "--deployment", str(deployment.path))
    assert done.exit_code == 1
    assert told in done.output


def test_what_cannot_be_read_keeps_nobody_from_using_the_other_builds(deployment: Deployment) -> None:
    repository = deployment.repository_path
    serve_all(deployment)
    old = build(deployment, "connector", tensorrt_version="10.16.1.11")
    (old / "engine.json").write_text("{")
    (repository / "connector" / "1" / "engine.json").write_text("{")
    assert [(build.name, build.installed) for build in builds_of(repository, "connector")] == [
        ("11.4.0.1-sm90-fp16", False)
    ]
    assert other_profiles(deployment) == []
    told = run("--deployment", str(deployment.path)).output
    assert f"{old}/engine.json cannot be read by this version; delete its folder" in told
    assert run("use", "11.4.0.1", "--deployment", str(deployment.path)).exit_code == 0
    assert check_installed(deployment, VERSION, SM) == []
