"""Folders of TensorRT builds: what is kept, what is served, and what a GPU host is told before it starts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from proteus import engines
from proteus.deployment import Deployment, DeploymentError
from proteus.engines import (
    STAGES,
    Engine,
    builds_of,
    check_installed,
    digest_of,
    graph_path,
    install,
    named,
    plan_path,
    stages_on_tensorrt,
    timing_cache_path,
)
from proteus.profiles import other_profiles
from tests.changed_deployment import ABSENT, changed
from tests.engine_builds import SM, VERSION, build, demo_copy, serve_all


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return demo_copy(tmp_path)


def test_a_build_is_kept_under_the_name_of_what_runs_it_and_served_from_the_version_folder(
    deployment: Deployment,
) -> None:
    repository = deployment.repository_path
    folder = build(deployment, "denoiser")
    assert folder == repository / "denoiser" / "engines" / "11.4.0.1-sm90-fp16"
    assert not plan_path(repository, "denoiser").exists()
    assert [build.installed for build in builds_of(repository, "denoiser")] == [False]
    install(repository, [folder])
    assert (repository / "denoiser" / "1" / "denoiser.plan").read_bytes() == b"plan"
    assert Engine.load(repository / "denoiser" / "1" / "engine.json") == Engine.load(folder / "engine.json")
    assert [build.installed for build in builds_of(repository, "denoiser")] == [True]
    assert plan_path(repository, "connector").name == "model.plan"


def test_an_older_build_comes_back_as_it_was(deployment: Deployment) -> None:
    repository = deployment.repository_path
    old = build(deployment, "connector", b"old", tensorrt_version="10.16.1.11", built_at="2026-01-01T00:00:00+00:00")
    new = build(deployment, "connector", b"new")
    install(repository, [new])
    install(repository, [old])
    assert plan_path(repository, "connector").read_bytes() == b"old"
    assert (new / "model.plan").read_bytes() == b"new"
    listed = builds_of(repository, "connector")
    assert [(build.name, build.installed) for build in listed] == [(new.name, False), (old.name, True)]
    build(deployment, "connector", b"newer")  # replaces what is kept, not what is served
    install(repository, [old])
    assert plan_path(repository, "connector").read_bytes() == b"old"


def test_a_damaged_build_changes_nothing_that_is_served(deployment: Deployment) -> None:
    repository = deployment.repository_path
    serve_all(deployment, content=b"first")
    folders = [build(deployment, stage, b"second", precision="bf16") for stage in STAGES]
    (folders[-1] / "model.plan").write_bytes(b"cut o")
    with pytest.raises(DeploymentError, match="not the file that engine.json tells of"):
        install(repository, folders)
    assert {plan_path(repository, stage).read_bytes() for stage in STAGES} == {b"first"}
    (folders[-1] / "model.plan").unlink()
    with pytest.raises(DeploymentError, match="is missing"):
        install(repository, folders)


def test_what_is_written_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "engine.json"
    target.write_text("old")

    def fail() -> None:
        with engines.replacing(target) as path:
            path.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_disk_without_links_gets_copies(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(engines.os, "link", refuse)
    install(deployment.repository_path, [build(deployment, "connector", b"copied")])
    assert plan_path(deployment.repository_path, "connector").read_bytes() == b"copied"


def test_the_digest_is_of_the_graph_and_of_the_weights_beside_it(tmp_path: Path) -> None:
    graph = tmp_path / "model.onnx"
    graph.write_bytes(b"graph")
    assert digest_of(graph) == hashlib.sha256(b"graph").hexdigest()
    (tmp_path / "model.onnx.data").write_bytes(b"weights")
    assert digest_of(graph) == hashlib.sha256(b"graphweights").hexdigest()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("11.4.0.1-sm90-fp16", {"connector": "11.4.0.1-sm90-fp16", "denoiser": "11.4.0.1-sm90-fp16"}),
        ("11.4.0.1-sm90-bf16", {"connector": "11.4.0.1-sm90-bf16"}),
        ("10.16.1.11", {"denoiser": "10.16.1.11-sm90-fp8"}),
        ("10.16.1.11-sm90", {"denoiser": "10.16.1.11-sm90-fp8"}),
    ],
)
def test_a_name_or_its_beginning_finds_the_builds_of_every_stage(
    deployment: Deployment, name: str, found: Mapping[str, str]
) -> None:
    build(deployment, "connector")
    build(deployment, "connector", precision="bf16")
    build(deployment, "denoiser")
    build(deployment, "denoiser", tensorrt_version="10.16.1.11", precision="fp8")
    builds = named(deployment.repository_path, name)
    assert {build.engine.stage: build.name for build in builds} == found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("11.4.0.1-sm90", ["connector has", "11.4.0.1-sm90-bf16", "11.4.0.1-sm90-fp16", "--model connector"]),
        ("11.4.0.1-sm9", ["is named 11.4.0.1-sm9", "known are 11.4.0.1-sm90-bf16"]),
        ("../../elsewhere", ["is named ../../elsewhere"]),
    ],
)
def test_a_name_that_is_of_no_build_or_of_several_is_refused(
    deployment: Deployment, name: str, words: list[str]
) -> None:
    build(deployment, "connector")
    build(deployment, "connector", precision="bf16")
    with pytest.raises(DeploymentError) as refused:
        named(deployment.repository_path, name)
    assert [word for word in words if word not in str(refused.value)] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", ["stage", "missing or wrong"]),
        ("no json", ["the document missing or wrong"]),
        (None, ["cannot be read"]),
    ],
)
def test_an_engine_file_that_cannot_be_used_names_itself_and_the_fix(
    tmp_path: Path, text: str | None, words: list[str]
) -> None:
    path = tmp_path / "engine.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DeploymentError) as refused:
        Engine.load(path)
    assert [word for word in [*words, str(path), "TARGET=tensorrt"] if word not in str(refused.value)] == []


def test_an_engine_file_of_another_version_is_refused(deployment: Deployment) -> None:
    path = build(deployment, "connector") / "engine.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(DeploymentError, match=r"has format 2; limit: format = 1"):
        Engine.load(path)


def test_engines_that_fit_are_not_complained_of(deployment: Deployment) -> None:
    serve_all(deployment)
    assert check_installed(deployment, VERSION, SM) == []
    assert other_profiles(deployment) == []


def test_what_keeps_an_engine_from_being_served_is_told_with_its_fix(deployment: Deployment) -> None:
    repository = deployment.repository_path
    problems = check_installed(deployment, VERSION, SM, ["connector", "chat"])
    assert problems == [
        f"{repository}/connector/1/model.plan is missing; build it here: make export CHECKPOINT=folder TARGET=tensorrt"
    ]
    build(deployment, "connector")
    (problem,) = check_installed(deployment, VERSION, SM, ["connector"])
    assert "a build that fits is kept: proteus engines use 11.4.0.1-sm90-fp16 --model connector" in problem
    serve_all(deployment)
    other = check_installed(deployment, "10.16.1.11", 89, ["denoiser"])
    assert [problem.split("denoiser.plan ")[1].split(";")[0] for problem in other] == [
        "was built by TensorRT 11.4.0.1, and this is 10.16.1.11",
        "was built for compute capability 9.0, and this GPU has 8.9",
    ]
    graph_path(repository, "vae_decoder").write_bytes(b"another")
    (stale,) = check_installed(deployment, VERSION, SM)
    assert "vae_decoder/1/model.plan was built from another model.onnx than is there now; build it here" in stale
    assert [build.stale for build in builds_of(repository, "vae_decoder")] == [True]
    plan_path(repository, "text_encoder").unlink()
    plan_path(repository, "text_encoder").write_bytes(b"cut")
    (cut,) = check_installed(deployment, VERSION, SM, ["text_encoder"])
    assert "is not the file that its engine.json tells of; proteus engines use 11.4.0.1-sm90-fp16" in cut
    (repository / "connector/1/engine.json").unlink()
    (bare,) = check_installed(deployment, VERSION, SM, ["connector"])
    assert "connector/1/engine.json cannot be read" in bare


def test_an_engine_of_another_precision_than_the_file_says_is_not_served(deployment: Deployment) -> None:
    """It would be named in caches by the precision that the file says."""
    serve_all(deployment)
    install(deployment.repository_path, [build(deployment, "connector", b"low", precision="fp8")])
    (problem,) = check_installed(deployment, VERSION, SM)
    assert f"connector/1/model.plan computes in fp8, and {deployment.path} says fp16 for gpu.connector" in problem
    assert "a build that fits is kept: proteus engines use 11.4.0.1-sm90-fp16 --model connector" in problem


def test_a_build_is_installed_only_where_its_plan_is(deployment: Deployment) -> None:
    serve_all(deployment)
    plan_path(deployment.repository_path, "connector").unlink()  # engine.json stays
    (kept,) = builds_of(deployment.repository_path, "connector")
    assert not kept.installed
    assert check_installed(deployment, VERSION, SM, ["connector"])[0].endswith(
        f"engines use {kept.name} --model connector"
    )


def test_a_disk_that_is_full_changes_nothing_that_is_served(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = deployment.repository_path
    serve_all(deployment, content=b"first")
    before = set(repository.rglob("*"))
    folders = [build(deployment, stage, b"second") for stage in STAGES]
    copies: list[Path] = []

    def copy(source: Path, target: Path) -> None:
        copies.append(target)
        if len(copies) == len(STAGES):
            raise OSError(28, "No space left on device")
        target.write_bytes(source.read_bytes())

    monkeypatch.setattr(engines, "_link", copy)
    with pytest.raises(DeploymentError, match=r"cannot be replaced \(No space left"):
        install(repository, folders)
    assert {plan_path(repository, stage).read_bytes() for stage in STAGES} == {b"first"}
    assert set(repository.rglob("*")) == before


def test_other_sizes_or_batches_than_an_engine_was_built_for_are_told(deployment: Deployment) -> None:
    serve_all(deployment)
    text = deployment.path.read_text(encoding="utf-8").replace("sizes = []", 'sizes = ["64x64"]')
    deployment.path.write_text(text, encoding="utf-8")
    problems = other_profiles(Deployment.load(deployment.path))
    assert [problem.split("model_repository/")[1].split("/")[0] for problem in problems] == ["denoiser", "vae_decoder"]
    assert all("other sizes or batches" in problem and "TARGET=tensorrt" in problem for problem in problems)
    assert len(other_profiles(Deployment.load(deployment.path), ["denoiser"])) == 1


@pytest.mark.parametrize(
    ("changes", "stages"),
    [
        ({}, STAGES),
        ({"gpu": ABSENT}, ()),
        ({"draw_checkpoint": ABSENT}, ("vision_encoder", "connector")),
        ({"checkpoint": ABSENT}, ("text_encoder", "denoiser", "vae_decoder")),
        ({"gpu.denoiser.runtime": "torch", "gpu.connector.runtime": "torch"}, (STAGES[0], STAGES[2], STAGES[4])),
    ],
)
def test_the_stages_that_need_engines_are_those_of_the_file(changes: Mapping[str, Any], stages: Any) -> None:
    assert stages_on_tensorrt(changed(changes)) == stages


def test_a_timing_cache_is_of_one_version_and_one_kind_of_gpu(deployment: Deployment) -> None:
    path = timing_cache_path(deployment, VERSION, SM)
    assert path == deployment.path.parent / "engines.timing" / "11.4.0.1-sm90.cache"
