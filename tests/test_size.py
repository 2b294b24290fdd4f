"""`proteus size`: memory and pods, against numbers worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from proteus.cli.commands import app
from proteus.deployment import Deployment, DeploymentError
from proteus.estimate_size import LanguageMemory, Serving, Size, Traffic, estimate_size, size_document
from proteus.estimate_size.weights import read_draw_weights, read_weights
from proteus.families.checkpoint import UnsupportedCheckpoint
from tests.families.published_folders import load_changed
from tests.families.published_llava import PUBLISHED

ROOT = Path(__file__).parents[1]
MIB = 1 << 20
DEMO = ROOT / "deployments" / "demo.toml"


@pytest.fixture
def llava(tmp_path: Path) -> Path:
    """A folder of LLaVA-1.5-7B without weights."""
    load_changed(tmp_path, PUBLISHED["LLaVA-1.5-7B"])
    return tmp_path


def traffic(**changes: Any) -> Traffic:
    return Traffic.model_validate({"gpu": {"memory_mib": 24_576, "context_mib": 500, "activation_mib": 2048}} | changes)


def language_of(size: Size) -> LanguageMemory:
    (memory,) = (memory for memory in size.memory if isinstance(memory, LanguageMemory))
    return memory


def test_llava_1_5_7b_by_hand(llava: Path) -> None:
    weights = read_weights(llava)
    layer = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    assert weights["language"].parameters == 2 * 32064 * 4096 + 32 * layer + 4096 == 6_738_939_904
    clip_layer = 4 * (1024**2 + 1024) + (1024 * 4096 + 4096) + (4096 * 1024 + 1024) + 4 * 1024
    tower = 3 * 14**2 * 1024 + 1024 + 577 * 1024 + 4 * 1024 + 24 * clip_layer
    assert weights["vision_encoder"].parameters == tower == 303_507_456
    assert weights["connector"].parameters == (1024 + 1) * 4096 + (4096 + 1) * 4096 == 20_979_712
    assert sum(part.parameters for part in weights.values()) == 7_063_427_072

    memory = language_of(estimate_size(traffic(), checkpoint=llava, serving=Serving(slots=8, context_tokens=4096)))
    assert memory.kv_token_bytes == 2 * 32 * 32 * 128 * 2 == MIB // 2
    assert memory.slot_bytes == 2048 * MIB
    assert [row.num_bytes for row in memory.rows[:2]] == [2 * 6_738_939_904, 8 * 2048 * MIB]
    left = 24_576 * MIB - 2 * 6_738_939_904 - (500 + 2048) * MIB
    assert memory.slots_that_fit == left // (2048 * MIB) == 4
    assert memory.fits is False


@pytest.mark.oracle
@pytest.mark.parametrize("changes", [{}, {"tied": True, "kv_heads": 4, "vision_hidden": 32, "head_dim": 24}])
def test_what_a_config_tells_is_what_transformers_makes_of_it(tmp_path: Path, changes: dict[str, Any]) -> None:
    from tests.tiny_llava import build_tiny_llava  # brings torch

    folder = build_tiny_llava(tmp_path / "tiny", **changes)
    stored = {part: known.parameters for part, known in read_weights(folder).items()}
    for file in folder.glob("*.safetensors"):
        file.unlink()
    assert {part: known.parameters for part, known in read_weights(folder).items()} == stored


def test_visual_tokens_are_in_the_prompt(llava: Path) -> None:
    asked = traffic(requests=[{"per_s": 1, "text_tokens": 50, "output_tokens": 100, "pictures": ["1280x720", "8x8"]}])
    size = estimate_size(asked, checkpoint=llava, serving=Serving(slots=8, context_tokens=4096))
    (load,) = size.fleet.loads
    assert (load.prompt_tokens, load.visual_tokens) == (2 * 576 + 50, 2 * 576)
    assert load.kv_bytes == (2 * 576 + 50 + 100) * MIB // 2
    assert load.visual_bytes == 2 * 576 * 4096 * 4
    memory = language_of(size)
    assert memory.mean_tokens == 2 * 576 + 150
    assert memory.kv_pool_bytes is not None
    assert memory.requests_that_fit == memory.kv_pool_bytes // (MIB // 2 * memory.mean_tokens)


def test_half_as_wide_values_hold_twice_as_many_slots_and_two_gpus_share(llava: Path) -> None:
    one, fp8, two = (
        language_of(estimate_size(traffic(), checkpoint=llava, serving=serving))
        for serving in (
            Serving(slots=1, context_tokens=4096),
            Serving(slots=1, context_tokens=4096, kv_value_bytes=1),
            Serving(slots=1, context_tokens=4096, tensor_parallel=2),
        )
    )
    assert fp8.kv_token_bytes * 2 == one.kv_token_bytes
    assert two.rows[0].num_bytes == 6_738_939_904
    assert two.kv_pool_bytes == 2 * (24_576 * MIB - 6_738_939_904 - 2548 * MIB)


def test_tensorrt_llm_takes_its_fraction(llava: Path) -> None:
    serving = Serving(slots=1, context_tokens=4096, kv_memory_fraction=0.5)
    memory = language_of(estimate_size(traffic(), checkpoint=llava, serving=serving))
    pool = (24_576 * MIB - 2 * 6_738_939_904 - 2548 * MIB) // 2
    assert memory.kv_pool_bytes == memory.rows[1].num_bytes == pool
    assert (memory.rows[1].basis, memory.slots_that_fit, memory.fits) == ("assumed", 2, True)
    assert "All slots want 2,048 MiB" in memory.rows[1].how
    crowded = Serving(slots=1, context_tokens=4096, kv_memory_fraction=0.1)
    none_fits = language_of(estimate_size(traffic(), checkpoint=llava, serving=crowded))
    assert (none_fits.slots_that_fit, none_fits.fits) == (0, False)


def test_llava_1_5_7b_on_80_gb_by_hand(llava: Path) -> None:
    """81,559 MiB less 12,854 of weights, two contexts and activations: 65,657; 0.8 of it holds 25 contexts of 2 GiB."""
    serving = Serving(
        slots=32,
        context_tokens=4096,
        kv_memory_fraction=0.8,
        processes={"language": 2},
    )
    asked = traffic(gpu={"memory_mib": 81_559, "context_mib": 500, "activation_mib": 2048})
    memory = language_of(estimate_size(asked, checkpoint=llava, serving=serving))
    assert memory.kv_pool_bytes == int((81_559 * MIB - 2 * 6_738_939_904 - 3048 * MIB) * 0.8)
    assert memory.kv_pool_bytes // MIB == 52_525
    assert memory.slots_that_fit == 25


@pytest.mark.parametrize(("gpus", "heads_of_each"), [(1, 8), (4, 2), (8, 1), (16, 1)])
def test_more_gpus_than_heads_of_keys_hold_copies(llava: Path, gpus: int, heads_of_each: int) -> None:
    load_changed(llava, PUBLISHED["LLaVA-1.5-7B"], {"config.json: text_config.num_key_value_heads": 8})
    serving = Serving(slots=1, context_tokens=4096, tensor_parallel=gpus)
    memory = language_of(estimate_size(traffic(), checkpoint=llava, serving=serving))
    assert memory.rows[1].num_bytes == 2 * 32 * heads_of_each * 128 * 2 * 4096
    assert memory.kv_token_bytes == gpus * 2 * 32 * heads_of_each * 128 * 2


def test_a_config_tells_tables_as_headers_do(llava: Path) -> None:
    assert read_weights(llava)["language"].tables == 2 * 32064 * 4096
    assert read_weights(ROOT / "checkpoints" / "demo")["language"].tables == 512 * 192


def test_the_demo_is_counted_from_its_files() -> None:
    """Its tables by hand: embeddings tied, 4 layers of 192 with 6 heads of 32, 2 of them for keys."""
    weights = read_weights(ROOT / "checkpoints" / "demo")
    layer = 2 * 192 * 192 + 2 * 192 * 64 + 3 * 192 * 512 + 2 * 192
    assert weights["language"].parameters == 512 * 192 + 4 * layer + 192
    assert {part: known.basis for part, known in weights.items()} == dict.fromkeys(weights, "exact")
    assert set(read_draw_weights(ROOT / "checkpoints" / "draw")) == {"text_encoder", "denoiser", "vae_decoder"}


def test_what_is_counted_is_what_the_exported_graph_holds() -> None:
    """In fp32 and once; the rest of the file is its nodes."""
    size = (ROOT / "model_repository" / "connector" / "1" / "model.onnx").stat().st_size
    held = 4 * read_weights(ROOT / "checkpoints" / "demo")["connector"].parameters
    assert held <= size < 1.1 * held


def test_the_demo_on_cpus_has_our_own_engines_memory() -> None:
    table = DEMO.read_text(encoding="utf-8")
    deployment = Deployment.load(DEMO)
    serving = Serving.of(deployment.model_copy(update={"gpu": None}))
    memory = language_of(estimate_size(traffic(), deployment=deployment, serving=serving))
    assert "context_tokens = 1024" in table
    assert (memory.kv_token_bytes, memory.slot_bytes) == (2 * 4 * 2 * 32 * 4, 1024 * 2048)
    assert memory.rows[1].num_bytes == deployment.llm.slots * 1024 * 2048
    assert serving.copies["vision_encoder"] == deployment.stages.vision_encoder.instances


@pytest.mark.parametrize(
    ("changes", "value_bytes", "fraction"),
    [
        ({}, 2, 0.8),  # though the demo's weights are stored in fp32
        ({"dtype": "bfloat16"}, 2, 0.8),
        ({"kv_dtype": "fp8"}, 1, 0.8),
        ({"dtype": "float16", "kv_dtype": "int8"}, 1, 0.8),
        ({"runtime": "onnxruntime"}, 4, None),
    ],
)
def test_values_are_as_wide_as_gpu_llm_says(changes: dict[str, str], value_bytes: int, fraction: float | None) -> None:
    deployment = Deployment.load(DEMO)
    assert deployment.gpu is not None
    gpu = deployment.gpu.model_copy(update={"llm": deployment.gpu.llm.model_copy(update=changes)})
    deployment = deployment.model_copy(update={"gpu": gpu})
    serving = Serving.of(deployment)
    memory = language_of(estimate_size(traffic(), deployment=deployment, serving=serving))
    assert (memory.kv_value_bytes, serving.kv_memory_fraction) == (value_bytes, fraction)
    on_gpu = fraction is not None
    assert serving.processes["language"] == (2 if on_gpu else 0)  # on each GPU, however many share the model


def test_our_own_engine_takes_nothing_of_a_gpu() -> None:
    deployment = Deployment.load(DEMO)
    assert deployment.gpu is not None
    llm = deployment.gpu.llm.model_copy(update={"runtime": "onnxruntime", "tensor_parallel": 2})
    deployment = deployment.model_copy(update={"gpu": deployment.gpu.model_copy(update={"llm": llm})})
    size = estimate_size(traffic(), deployment=deployment, serving=Serving.of(deployment))
    memory = language_of(size)
    assert (memory.on_cpus, memory.fits, memory.slots_that_fit) == (True, None, None)
    assert [row.what for row in memory.rows] == ["weights of language", "keys and values"]
    assert memory.rows[1].num_bytes == deployment.llm.slots * 1024 * 2048
    assert [one.on_cpus for one in size.memory] == [False, True, False]


def test_an_installed_engine_is_counted_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "deployment.toml"
    text = DEMO.read_text(encoding="utf-8").replace('"../model_repository"', '"repository"')
    file.write_text(text.replace('"../checkpoints', f'"{ROOT}/checkpoints'), encoding="utf-8")
    assert Serving.of(Deployment.load(file)).plan_bytes == {}
    plan = tmp_path / "repository" / "vision_encoder" / "1" / "model.plan"
    plan.parent.mkdir(parents=True)
    plan.write_bytes(b"x" * 777)
    deployment = Deployment.load(file)
    encoder = estimate_size(traffic(), deployment=deployment, serving=Serving.of(deployment)).memory[0]
    assert [row.num_bytes for row in encoder.rows if row.how == "its installed engine"] == [777]


def test_requests_that_no_checkpoint_is_for_are_told(llava: Path) -> None:
    asked = traffic(requests=[{"per_s": 1, "draw": "64x64", "name": "art"}, {"per_s": 1, "text_tokens": 5}])
    size = estimate_size(asked, checkpoint=llava, serving=Serving(slots=1, context_tokens=64))
    assert (list(size.unserved), len(size.fleet.loads)) == (["art"], 1)
    assert "left out" in run("--traffic", str(ROOT / "docs" / "traffic.toml"), "--checkpoint", str(llava))


MEASURED = {
    "encode_pictures_per_s": 10,
    "prefill_tokens_per_s": 1000,
    "decode_tokens_per_s": 400,
    "denoise_evaluations_per_s": 50,
}
READING = {"per_s": 2, "text_tokens": 64, "output_tokens": 80, "pictures": ["640x480"]}  # 36 visual tokens of the demo
DRAWING = {"per_s": 3, "draw": "64x64", "steps": 20, "guidance": 2.0, "images": 2}


def pods(**changes: Any) -> dict[str, Any]:
    deployment = Deployment.load(DEMO)
    asked = traffic(**({"measured": MEASURED, "utilisation": 0.5, "requests": [READING, DRAWING]} | changes))
    told = size_document(estimate_size(asked, deployment=deployment, serving=Serving.of(deployment)))
    return dict(told["pods"])


def test_pods_by_hand() -> None:
    told = pods()
    assert told["encoder"]["needed"] == pytest.approx(2 / (10 * 0.5))
    # 100 tokens of prompt take 0.1 s of the engine, 80 of answer 0.2 s: 0.6 s of work a second.
    assert told["language"]["needed"] == pytest.approx(2 * (0.1 + 0.2) / 0.5)
    assert told["draw"]["needed"] == pytest.approx(3 * 2 * 20 * 2 / (50 * 0.5))
    assert [told[pool]["pods"] for pool in ("encoder", "language", "draw")] == [1, 2, 10]


def test_cached_pictures_need_no_encoder() -> None:
    assert pods(cached_pictures=0.75)["encoder"]["needed"] == pytest.approx(0.25 * pods()["encoder"]["needed"])


def test_prompts_that_take_all_the_time_need_slots_as_well() -> None:
    """Long prompts hold a slot for their prefill: 8 s of it each, 16 of them under way."""
    asked = {"measured": MEASURED | {"prefill_tokens_per_s": 12.5}, "requests": [READING | {"output_tokens": 0}]}
    assert pods(**asked)["language"]["needed"] == pytest.approx(2 * 8 / 0.5)


def test_what_was_not_measured_gives_no_number() -> None:
    told = pods(measured={})
    assert [told[pool]["pods"] for pool in told] == [None, None, None]
    assert "prefill_tokens_per_s" in told["language"]["why"]


def test_tflops_give_a_lower_bound() -> None:
    told = pods(measured={"tflops": 0.001})
    assert told["encoder"]["why"].startswith("at least")
    language = read_weights(ROOT / "checkpoints" / "demo")["language"].parameters
    assert told["language"]["needed"] == pytest.approx(2 * (language - 512 * 192) * 2 * (100 + 80) / (1e9 * 0.5))
    assert told["draw"]["pods"] is None


def test_nothing_asked_needs_one_pod_of_each() -> None:
    assert {told["pods"] for told in pods(requests=[]).values()} == {1}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[gpu", "is not TOML"),
        ("", "gpu: Field required"),
        ("gpu = { memory_mib = 0 }", "gpu.memory_mib"),
        ("gpu = { memory_mib = 1, size = 2 }", "gpu.size"),
        ("gpu = { memory_mib = 1 }\nutilisation = 1.5", "utilisation"),
        ('gpu = { memory_mib = 1 }\n[[requests]]\nper_s = 1\ndraw = "64x64"\ntext_tokens = 3', "draw goes with"),
        ('gpu = { memory_mib = 1 }\n[[requests]]\nper_s = 1\npictures = ["64"]', "requests.0.pictures.0"),
        ("gpu = { memory_mib = 1 }\n[[requests]]\nper_s = nan", "requests.0.per_s"),
    ],
)
def test_a_mistake_in_the_traffic_file_is_named(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "traffic.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(DeploymentError, match=told):
        Traffic.load(file)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 8,
        np.array([1 << 40], "<u8").tobytes() + b"{}",
        np.array([2], "<u8").tobytes() + b"[]",
        np.array([4], "<u8").tobytes() + b"null",
        np.array([9], "<u8").tobytes() + b'{"a": {}}',
        np.array([30], "<u8").tobytes() + b'{"a": {"dtype": "F32", "shape"',
    ],
)
def test_a_damaged_header_is_told(llava: Path, data: bytes) -> None:
    (llava / "model.safetensors").write_bytes(data)
    with pytest.raises(UnsupportedCheckpoint, match="no header of safetensors"):
        read_weights(llava)


def test_a_model_that_is_built_otherwise_is_unknown_and_not_guessed(llava: Path) -> None:
    load_changed(llava, PUBLISHED["LLaVA-1.5-7B"], {"config.json: text_config.model_type": "gemma2"})
    assert "language" not in read_weights(llava)
    memory = language_of(estimate_size(traffic(), checkpoint=llava, serving=Serving(slots=8, context_tokens=64)))
    assert (memory.used_bytes, memory.fits, memory.slots_that_fit) == (None, None, None)
    assert memory.rows[0].basis == "unknown"


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["size", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_for_a_person_and_for_a_program(llava: Path) -> None:
    example = str(ROOT / "docs" / "traffic.toml")
    output = run("--traffic", example, "--deployment", str(DEMO))
    for words in ("memory of one GPU of the pool encoder", "slots that fit", "[gpu] context_mib", "because of"):
        assert words in output
    told = json.loads(run("--traffic", example, "--deployment", str(DEMO), "--json"))
    assert {pool: one["pods"] for pool, one in told["pods"].items()} == {"encoder": 1, "language": 2, "draw": 1}
    told = json.loads(
        run("--gpu-mib", "24576", "--checkpoint", str(llava), "--slots", "4", "--kv-bytes", "1", "--json")
    )
    assert told["memory"]["language"]["kv_token_bytes"] == MIB // 4
    assert told["memory"]["language"]["slot_bytes"] == 4096 * MIB // 4
    assert told["requests"] == []


@pytest.mark.parametrize("arguments", [[], ["--gpu-mib", "1", "--traffic", "docs/traffic.toml"], ["--slots", "3"]])
def test_options_that_do_not_go_together_are_refused(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["size", *arguments, *(["--gpu-mib", "9"] if arguments == ["--slots", "3"] else [])])
    assert done.exit_code == 2
