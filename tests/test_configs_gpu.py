"""configs/gpu.pbtxt by Triton's own schema, beside the config.pbtxt of the same model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from proteus import configs, configs_gpu
from proteus.deployment import Deployment, DeploymentError
from proteus.launcher.command import command
from proteus.launcher.gpu_host import GpuHost
from proteus.launcher.installation import Installation
from proteus.launcher.ports import Ports
from proteus.manifest import Manifest
from proteus.profiles import profiles_of
from tests.changed_deployment import ABSENT, DEMO, changed

STAGES = ("vision_encoder", "connector", "text_encoder", "vae_decoder")
FIXED = STAGES[:3]


def all_stages(**table: Any) -> dict[str, Any]:
    return {f"gpu.{stage}.{key}": value for stage in STAGES for key, value in table.items()}


DEPLOYMENTS: dict[str, Mapping[str, Any]] = {
    "demo": {},
    "onnxruntime": {
        **all_stages(runtime="onnxruntime", precision="fp32"),
        "gpu.denoiser.runtime": "onnxruntime",
        "gpu.denoiser.precision": "fp32",
    }
    | {"gpu.llm.runtime": "onnxruntime"},
    "torch": {**all_stages(runtime="torch", precision="bf16"), "gpu.denoiser.runtime": "torch"},
    "mixed": {"gpu.connector.runtime": "torch", "gpu.vae_decoder.runtime": "onnxruntime"}
    | {"gpu.vae_decoder.precision": "fp32"},
    "no draw": {"draw_checkpoint": ABSENT},
    "only draw": {"checkpoint": ABSENT},
    "two devices": {"gpu.devices": [0, 2], "gpu.llm.device": 1, "gpu.denoiser.device": 2, "gpu.encodes_at_once": 3},
    "many sizes": {"draw.max_side_px": 128, "draw.max_pixels": 16_384},
    "named sizes": {"gpu.sizes": ["64x64", "96x96"]},
    "one at a time": {f"stages.{stage}.max_batch": 1 for stage in STAGES},
    "odd batches": {f"stages.{stage}.max_batch": 11 for stage in STAGES} | all_stages(instances=1),
}


@cache
def deployment_of(name: str) -> Deployment:
    return changed(DEPLOYMENTS[name])


@cache
def rendered(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """For hosts without GPUs, and for those with them, by model."""
    deployment = deployment_of(name)
    exports = configs.read_exports(deployment)
    cpu, gpu = configs.render(deployment, exports), configs.render_gpu(deployment, exports)
    return {model: parse(text) for model, text in cpu.items()}, {model: parse(text) for model, text in gpu.items()}


def parse(text: str) -> Any:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def graphs_of(name: str) -> dict[str, Any]:
    return {model: config for model, config in rendered(name)[1].items() if model in STAGES}


every_deployment = pytest.mark.parametrize("name", DEPLOYMENTS)


@every_deployment
def test_every_model_has_the_tensors_and_batches_that_it_has_on_cpus(name: str) -> None:
    """Also what is optional or ragged, and what the ensemble hands to which step."""
    cpu, gpu = rendered(name)
    assert list(cpu) == list(gpu)
    assert set(gpu) == set(deployment_of(name).models)
    for model, config in gpu.items():
        same = cpu[model]
        assert config.name == same.name == model
        for field in ("input", "output", "max_batch_size", "dynamic_batching", "model_transaction_policy"):
            assert getattr(config, field) == getattr(same, field), (model, field)
        for field in ("ensemble_scheduling", "response_cache"):
            assert getattr(config, field) == getattr(same, field), (model, field)


@every_deployment
def test_parameters_of_python_models_are_those_on_cpus_and_name_the_hardware(name: str) -> None:
    cpu, gpu = rendered(name)
    for model in set(gpu) - {*STAGES, "image_tokens"}:
        more = {"hardware": "gpu"}
        if model in ("llm", "denoiser"):
            more["runtime"] = getattr(deployment_of(name).gpu, model).runtime
        assert parameters(gpu[model]) == parameters(cpu[model]) | more


def parameters(config: Any) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


@every_deployment
def test_doors_and_preprocessing_are_on_cpus_engines_and_graphs_on_their_gpus(name: str) -> None:
    deployment, (cpu, gpu) = deployment_of(name), rendered(name)
    assert deployment.gpu is not None
    for model, config in gpu.items():
        if model in ("chat", "draw", "image_preprocess"):
            assert config.instance_group == cpu[model].instance_group
        elif model in ("llm", "denoiser"):
            (group,) = config.instance_group
            assert (group.kind, group.count) == (group.KIND_GPU, 1), "mailboxes live in one process"
            assert list(group.gpus) == [getattr(deployment.gpu, model).device]
            assert not group.HasField("rate_limiter"), "a question would wait for a picture"
        elif model in STAGES:
            (group,) = config.instance_group
            assert (group.kind, list(group.gpus)) == (group.KIND_GPU, deployment.gpu.devices)
            assert group.count == deployment.gpu.stages()[model].instances


@every_deployment
def test_resources_are_those_that_the_launcher_gives_to_the_same_devices(name: str) -> None:
    """What a device has none of would keep the instance from loading."""
    deployment = deployment_of(name)
    line = command(
        Installation.find(),
        repository=Path("/models"),
        models=deployment.models,
        backends=Path("/backends"),
        ports=Ports(http=1, grpc=2, metrics=3),
        response_cache_bytes=0,
        shm_prefix="mine",
        gpu=GpuHost.of(deployment, deployment.models),
    )
    counts: dict[tuple[str, int], int] = {}
    for argument in line:
        if argument.startswith("--rate-limit-resource="):
            resource, count, device = argument.partition("=")[2].split(":")
            counts[resource, int(device)] = int(count)
    assert "--rate-limit=execution_count" in line
    for config in graphs_of(name).values():
        (group,) = config.instance_group
        assert len(group.rate_limiter.resources) == 1
        assert group.rate_limiter.priority == configs_gpu.BEHIND_OTHERS, "else doors would wait behind a stage"
        for resource in group.rate_limiter.resources:
            assert not getattr(resource, "global")
            for device in group.gpus:
                assert counts[resource.name, device] >= resource.count
    assert deployment.gpu is not None
    assert set(counts.values()) == {deployment.gpu.encodes_at_once}


@every_deployment
def test_a_graph_is_the_file_of_its_runtime(name: str) -> None:
    files = {
        "tensorrt": ("tensorrt_plan", "", "model.plan"),
        "onnxruntime": ("", "onnxruntime", ""),
        "torch": ("", "proteus_torch", "model.pt2"),
    }
    gpu = deployment_of(name).gpu
    assert gpu is not None
    for model, config in graphs_of(name).items():
        runtime = gpu.stages()[model].runtime
        assert (config.platform, config.backend, config.default_model_filename) == files[runtime]
        assert (runtime == "tensorrt") == (len(config.instance_group[0].profile) > 0)
        told = parameters(config)
        assert ("clock_output" in told) == (runtime != "tensorrt" and model in ("vision_encoder", "connector"))
        assert told["precision"] == gpu.stages()[model].precision
        assert {"nice", "intra_op_thread_count"}.isdisjoint(told) == (runtime == "tensorrt")


@every_deployment
def test_profiles_are_named_by_number_and_take_every_batch(name: str) -> None:
    for model, config in on_tensorrt(name).items():
        profiles = profiles_of(deployment_of(name), model)  # type: ignore[arg-type]
        assert list(config.instance_group[0].profile) == [str(number) for number in range(len(profiles))]
        for profile in profiles:
            assert profile.shapes.keys() == {tensor.name for tensor in config.input}
            for least, _, most in profile.shapes.values():
                assert (least[0], most[0]) == (1, config.max_batch_size)


def on_tensorrt(name: str) -> dict[str, Any]:
    return {model: config for model, config in graphs_of(name).items() if config.platform == "tensorrt_plan"}


@every_deployment
def test_every_profile_is_warm_within_its_shapes(name: str) -> None:
    for model, config in on_tensorrt(name).items():
        profiles = profiles_of(deployment_of(name), model)  # type: ignore[arg-type]
        batches = {1, config.max_batch_size}
        assert len({warmup.name for warmup in config.model_warmup}) == len(config.model_warmup)
        warm = {
            (warmup.batch_size, number)
            for warmup in config.model_warmup
            for number, profile in enumerate(profiles)
            if all(
                within((warmup.batch_size, *warmup.inputs[tensor].dims), *span)
                for tensor, span in profile.shapes.items()
            )
        }
        assert warm >= {(batch, number) for batch in batches for number in range(len(profiles))}


def within(shape: tuple[int, ...], least: tuple[int, ...], _opt: tuple[int, ...], most: tuple[int, ...]) -> bool:
    return len(shape) == len(least) and all(
        low <= dim <= high for low, dim, high in zip(least, shape, most, strict=True)
    )


@every_deployment
def test_cuda_graphs_cover_every_batch_once_where_shapes_are_fixed(name: str) -> None:
    """Triton runs the first graph whose batch is not smaller and whose lower bound is not larger."""
    for model, config in on_tensorrt(name).items():
        cuda = config.optimization.cuda
        assert cuda.graphs == (model in FIXED)
        covered = [
            batch for spec in cuda.graph_spec for batch in range(spec.graph_lower_bound.batch_size, spec.batch_size + 1)
        ]
        assert covered == (list(range(1, config.max_batch_size + 1)) if model in FIXED else [])
        dims = {tensor.name: list(tensor.dims) for tensor in config.input}
        for spec in cuda.graph_spec:
            assert {tensor: list(shape.dim) for tensor, shape in spec.input.items()} == dims
            assert spec.graph_lower_bound.input == spec.input
            assert spec.batch_size < 2 * spec.graph_lower_bound.batch_size, "at most half of the rows are for nothing"


@every_deployment
def test_copies_go_through_pinned_memory_and_kernels_give_way(name: str) -> None:
    for config in graphs_of(name).values():
        policy = config.optimization
        if config.backend == "proteus_torch":
            assert policy == type(policy)(), "Triton's own settings do not reach into Python"
        else:
            assert policy.input_pinned_memory.enable
            assert policy.output_pinned_memory.enable
            assert policy.priority == policy.PRIORITY_MIN
            assert not policy.eager_batching, "it would give the limiter's resource back before the work is done"
            assert (policy.gather_kernel_buffer_threshold > 0) == (
                config.name == "connector" and config.platform == "tensorrt_plan"
            )


def test_onnx_runtime_runs_by_cuda_with_bounded_searches_and_memory() -> None:
    for config in graphs_of("onnxruntime").values():
        (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
        assert accelerator.name == "cuda"
        assert dict(accelerator.parameters) == {
            "cudnn_conv_algo_search": "HEURISTIC",
            "arena_extend_strategy": "kSameAsRequested",
        }


def test_contexts_of_many_profiles_hold_no_more_memory_than_each_needs() -> None:
    key = "execution_context_allocation_strategy"
    told = {model: parameters(config).get(key) for model, config in graphs_of("demo").items()}
    assert (told["vae_decoder"], told["vision_encoder"]) == ("ON_PROFILE_CHANGE", None)


def test_more_sizes_than_an_engine_can_have_profiles_are_refused_by_their_number() -> None:
    deployment = changed({"draw.max_side_px": 512, "draw.max_pixels": 262_144})
    with pytest.raises(DeploymentError, match=r"sizes of drawn pictures.*gpu\.sizes"):
        configs.render_gpu(deployment, configs.read_exports(deployment))


def test_files_of_a_gpu_host_go_with_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = DEMO.parents[1] / "model_repository"
    for manifest in repository.glob("*/1/export.json"):
        (folder := tmp_path / manifest.relative_to(repository).parent).mkdir(parents=True)
        (folder / manifest.name).write_bytes(manifest.read_bytes())
    monkeypatch.setattr(Deployment, "repository_path", tmp_path)
    configs.write(changed({}))
    assert len(list(tmp_path.glob("*/configs/gpu.pbtxt"))) == len(list(tmp_path.glob("*/config.pbtxt"))) == 10
    assert configs.stale(changed({})) == []
    without = changed({"gpu": ABSENT})
    left_over = set(tmp_path.glob("*/configs/gpu.pbtxt"))
    assert set(configs.stale(without)) == left_over
    assert left_over <= set(configs.write(without))
    assert list(tmp_path.glob("*/configs/gpu.pbtxt")) == configs.stale(without) == []


def test_encoder_servers_tell_the_revision_of_their_checkpoint_on_either_hardware() -> None:
    revision = Manifest.load(deployment_of("demo").repository_path).revision
    for render in (configs.render, configs.render_gpu):
        deployment = deployment_of("demo")
        text = render(deployment, configs.read_exports(deployment))["image_tokens"]
        assert f'parameters {{ key: "revision" value: {{ string_value: "{revision}" }} }}' in text
